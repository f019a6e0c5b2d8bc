//! System calls that another process makes for us, many at a stop.
//!
//! ```text
//!   vdso, unused end:  stub | errand            executable, never writable from inside
//!   area, ours:        data | script | bell | return   writable, never executable
//! ```
//!
//! An errand, one call with everything in registers, makes room (the area) and takes it away again.
//! A script is a row of calls in the area: the stub makes them one after the other and writes down what
//! they returned; then it rings, which stops it for us.
//!
//! **If we die at any point, the program goes on as before:** an errand and a script both end by going back
//! to where the program was, with registers and mask. The bell is a signal that the program does not
//! catch and that does nothing by default, so without a tracer it is nothing. What stays is an
//! unused mapping.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::OnceLock};

use crate::{
    arch::{self, Bell, Registers},
    sys::{memory, read_text},
};

/// One system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) args: [u64; 6],
}

impl Call {
    pub(crate) fn new(number: libc::c_long, given: &[u64]) -> Self {
        let mut args = [0; 6];
        args[..given.len()].copy_from_slice(given);
        Self { number, args }
    }

    fn words(&self) -> [u64; WORDS] {
        let [a, b, c, d, e, f] = self.args;
        [self.number as u64, a, b, c, d, e, f]
    }
}

/// A call in a script: number and arguments. What it returned is in the last.
pub(crate) const WORDS: usize = 7;
const RESULT: usize = 6;

/// What a call returned, or its error.
pub(crate) fn returned(value: i64) -> io::Result<u64> {
    if (-4095..0).contains(&value) {
        Err(io::Error::from_raw_os_error(-value as i32))
    } else {
        Ok(value as u64)
    }
}

/// Calls, and the data that they read and write.
#[derive(Debug)]
pub(crate) struct Script {
    /// Where the data will be.
    base: u64,
    data: Vec<u8>,
    capacity: usize,
    calls: Vec<Call>,
}

impl Script {
    /// For the memory from `base` on, which is on 64 bytes; its data has at most `capacity` bytes.
    pub(crate) fn new(base: u64, capacity: usize) -> Self {
        Self { base, data: Vec::new(), capacity: capacity.next_multiple_of(64), calls: Vec::new() }
    }

    pub(crate) fn call(&mut self, number: libc::c_long, args: &[u64]) -> usize {
        self.push(Call::new(number, args))
    }

    pub(crate) fn push(&mut self, call: Call) -> usize {
        self.calls.push(call);
        self.calls.len() - 1
    }

    pub(crate) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Where `bytes` will be, on 64 bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.data.len().next_multiple_of(64);
        if at + bytes.len() > self.capacity {
            return Err(io::Error::other("no room for a script's data"));
        }
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        Ok(self.base + at as u64)
    }

    pub(crate) fn put_words(&mut self, words: &[u64]) -> io::Result<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes)
    }

    pub(crate) fn room(&mut self, len: usize) -> io::Result<u64> {
        self.put(&vec![0; len])
    }

    /// Where the first call is.
    pub(crate) fn start(&self) -> u64 {
        self.base + self.capacity as u64
    }

    fn call_words(&self) -> Vec<u64> {
        self.calls.iter().flat_map(Call::words).collect()
    }

    /// Data and calls, with `tail` behind them.
    pub(crate) fn bytes(&self, tail: &[u64]) -> Vec<u8> {
        let mut bytes = self.data.clone();
        bytes.resize(self.capacity, 0);
        for word in self.call_words().iter().chain(tail) {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }
}

/// A script's outcome: what calls returned, and its data.
#[derive(Debug)]
pub(crate) struct Outcome {
    base: u64,
    data: Vec<u8>,
    results: Vec<i64>,
}

impl Outcome {
    /// Of a script that ended, read from the process that ran it.
    pub(crate) fn read(pid: i32, script: &Script) -> io::Result<Self> {
        let mut bytes = vec![0; script.capacity + script.calls.len() * WORDS * 8];
        memory::read(pid, script.base, &mut bytes)?;
        let calls = bytes.split_off(script.capacity);
        let results = calls.chunks_exact(WORDS * 8).map(|call| word(call, RESULT * 8) as i64);
        Ok(Self { base: script.base, results: results.collect(), data: bytes })
    }

    pub(crate) fn result(&self, call: usize) -> io::Result<u64> {
        returned(self.results.get(call).copied().unwrap_or(-i64::from(libc::EIO)))
    }

    /// The first call that failed.
    pub(crate) fn failure(&self) -> Option<(usize, io::Error)> {
        let failed = |(call, value): (usize, &i64)| Some((call, returned(*value).err()?));
        self.results.iter().enumerate().find_map(failed)
    }

    pub(crate) fn words<const N: usize>(&self, at: u64) -> [u64; N] {
        let at = (at - self.base) as usize;
        std::array::from_fn(|index| word(&self.data, at + index * 8))
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// What is put behind a script so that it rings, and then goes back by itself.
pub(crate) fn ending(
    script: &Script,
    bell: Bell,
    regs: &Registers,
    mask: u64,
    extended: &[u8],
) -> Vec<u64> {
    let ring = bell.call().words();
    let back = Call::new(libc::SYS_rt_sigreturn, &[]).words();
    // The frame begins where the last argument of the return is.
    let frame_at = script.start() + ((script.calls.len() + 2) * WORDS * 8) as u64;
    let frame_len = arch::frame(regs, mask, 0).len() as u64 * 8;
    let extended_at = (frame_at + frame_len).next_multiple_of(64);
    let mut tail: Vec<u64> = ring.into_iter().chain(back).collect();
    tail.extend(arch::frame(regs, mask, extended_at));
    let gap = (extended_at - frame_at - frame_len) / 8;
    tail.extend(std::iter::repeat_n(0, gap as usize));
    let mut extended = arch::frame_extended(extended);
    extended.resize(extended.len().next_multiple_of(8), 0);
    tail.extend(extended.chunks_exact(8).map(|chunk| word(chunk, 0)));
    tail
}

/// Where the frame's alternate stack is, which the script itself fills in.
pub(crate) fn stack_in_frame(script: &Script, calls: usize) -> u64 {
    script.start() + ((calls + 2) * WORDS * 8 + arch::FRAME_STACK * 8) as u64
}

/// The unused end of the kernel's own code in a process, where ours can be: nobody executes or reads
/// it, and no mapping has to be both writable and executable.
#[derive(Debug)]
pub(crate) struct Foothold {
    memory: File,
    at: u64,
}

const FOOTHOLD: u64 = 512;
const ERRAND_AT: u64 = 64;

impl Foothold {
    /// `vdso` is where it is in the process.
    pub(crate) fn take(pid: i32, vdso: (u64, u64)) -> io::Result<Self> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let at = vdso.1 - FOOTHOLD;
        let ours = KernelPages::own()?;
        if ours.len != vdso.1 - vdso.0 {
            return Err(io::Error::other("its vDSO is not this kernel's"));
        }
        if !ours.has_unused_end {
            return Err(io::Error::other("this kernel's vDSO has no unused end"));
        }
        memory.write_all_at(arch::stub(), at)?;
        Ok(Self { memory, at })
    }

    /// Whether an instruction is in what we put there, at some time.
    pub(crate) fn has(vdso: (u64, u64), instruction: u64) -> bool {
        (vdso.1 - FOOTHOLD..=vdso.1).contains(&instruction)
    }

    /// Where the stub is.
    pub(crate) fn stub(&self) -> u64 {
        self.at
    }

    /// Puts an errand there, and says where.
    pub(crate) fn put_errand(&self, code: &[u8]) -> io::Result<u64> {
        if code.len() as u64 > FOOTHOLD - ERRAND_AT {
            return Err(io::Error::other("an errand is too long"));
        }
        self.memory.write_all_at(code, self.at + ERRAND_AT)?;
        Ok(self.at + ERRAND_AT)
    }

    /// As it was. Nobody may stand in it.
    pub(crate) fn leave(&self) -> io::Result<()> {
        self.memory.write_all_at(&[0; FOOTHOLD as usize], self.at)
    }
}

/// What the kernel maps into every process by itself, which is the same in all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelPages {
    /// From the first of these pages to the vDSO.
    before: u64,
    /// Of the vDSO.
    len: u64,
    has_unused_end: bool,
}

impl KernelPages {
    pub(crate) fn own() -> io::Result<Self> {
        static OWN: OnceLock<KernelPages> = OnceLock::new();
        if let Some(own) = OWN.get() {
            return Ok(*own);
        }
        let own = Self::look()?;
        Ok(*OWN.get_or_init(|| own))
    }

    /// Where the vDSO is in a process that has the first of them at `start`.
    pub(crate) fn vdso_from(&self, start: u64) -> (u64, u64) {
        (start + self.before, start + self.before + self.len)
    }

    fn look() -> io::Result<Self> {
        let maps = read_text("/proc/self/maps")?;
        let parse = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            Some((parse(start)?, parse(end)?))
        };
        let is_kernels = |line: &&str| line.ends_with("[vdso]") || line.contains("[vvar");
        let first = maps.lines().find(is_kernels).and_then(range);
        let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(range);
        let (first, vdso) =
            first.zip(vdso).ok_or_else(|| io::Error::other("this process has no vDSO"))?;
        let mut end = [0; FOOTHOLD as usize];
        memory::read(std::process::id() as i32, vdso.1 - FOOTHOLD, &mut end)?;
        let has_unused_end = end.iter().all(|byte| *byte == 0);
        Ok(Self { before: vdso.0 - first.0, len: vdso.1 - vdso.0, has_unused_end })
    }
}
