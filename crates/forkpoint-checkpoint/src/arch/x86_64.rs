//! x86-64: registers, the code that is put into a process, and the frame of a signal.

#![expect(unsafe_code, reason = "assembly, and the place of one program taken by another")]

use std::{arch::global_asm, io, slice};

use serde::{Deserialize, Serialize};

use crate::{script::Call, sys::ptrace};

pub(crate) const NAME: &str = "x86_64";
const GENERAL: u64 = 1;
const EXTENDED: u64 = 0x202;
const EXTENDED_MAX: usize = 16 << 10;
/// The end of what a process can map.
pub(crate) const SPACE_END: u64 = 0x7fff_ffff_f000;
/// Nothing is mapped below, whatever the kernel's setting.
pub(crate) const SPACE_START: u64 = 0x1_0000;

// A script's words are popped off the stack: number, six arguments, call; the result goes where the
// last argument was. A negative number is beyond the end of a script, where nobody should come.
global_asm!(
    ".pushsection .rodata.forkpoint_stub, \"a\", @progbits",
    ".global forkpoint_stub",
    ".global forkpoint_stub_end",
    "forkpoint_stub:",
    "2: pop rax",
    "test rax, rax",
    "js 3f",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "syscall",
    "mov [rsp - 8], rax",
    "jmp 2b",
    "3: ud2",
    "forkpoint_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static forkpoint_stub: u8;
    static forkpoint_stub_end: u8;
}

/// The code that runs a script.
pub(crate) fn stub() -> &'static [u8] {
    let (start, end) = (&raw const forkpoint_stub, &raw const forkpoint_stub_end);
    // SAFETY: both are labels of the section above, one behind the other, and nothing writes there.
    unsafe { slice::from_raw_parts(start, end as usize - start as usize) }
}

/// `told` is what the kernel says of a thread under a key of its `status`.
pub(crate) fn has_shadow_stack<'a>(told: impl Fn(&str) -> &'a str) -> bool {
    told("x86_Thread_features").split(' ').any(|feature| feature == "shstk")
}

/// In the order of the kernel's `user_regs_struct`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registers {
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) rbp: u64,
    pub(crate) rbx: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rax: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    pub(crate) orig_rax: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) eflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
    pub(crate) ds: u64,
    pub(crate) es: u64,
    pub(crate) fs: u64,
    pub(crate) gs: u64,
}

const TRAP_FLAG: u64 = 0x100;
const NOT_IN_A_CALL: u64 = u64::MAX;
const CODE_64: u64 = 0x33;
const DATA_64: u64 = 0x2b;
/// Flags that a program may set: arithmetic, direction, alignment check, id.
const USER_FLAGS: u64 = 0x0024_0cd5;
const FLAGS_ALWAYS: u64 = 0x202;

impl Registers {
    /// Where a thread that goes on looks first: its code, its stack, and what is its own.
    pub(crate) fn soon(&self) -> [u64; 3] {
        [self.rip, self.rsp, self.fs_base]
    }

    pub(crate) fn of(tid: i32) -> io::Result<Self> {
        let mut regs = Self::default();
        // SAFETY: a struct of integers without padding may be written byte by byte.
        let bytes =
            unsafe { slice::from_raw_parts_mut((&raw mut regs).cast::<u8>(), size_of::<Self>()) };
        let len = ptrace::registers(tid, GENERAL, bytes)?;
        if len == size_of::<Self>() { Ok(regs) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    pub(crate) fn set(&self, tid: i32) -> io::Result<()> {
        // SAFETY: a struct of integers without padding may be read byte by byte.
        let bytes =
            unsafe { slice::from_raw_parts((&raw const *self).cast::<u8>(), size_of::<Self>()) };
        ptrace::set_registers(tid, GENERAL, bytes)
    }

    /// Why a task in this state cannot be captured.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        (self.cs != CODE_64).then_some("a program of 32 bits")
    }

    pub(crate) fn instruction(&self) -> u64 {
        self.rip
    }

    pub(crate) fn go_to(&mut self, instruction: u64) {
        self.rip = instruction;
    }

    /// The same moment for a copy that does not have the kernel's memory of the call it stood in: the
    /// call is made again. A sleep that was to tell how much of it is left has told so by now, and goes on with
    /// that; any other wait with a relative time begins anew, for only the kernel knows when it began.
    pub(crate) fn restarted(&self) -> Self {
        let mut regs = *self;
        if self.orig_rax != NOT_IN_A_CALL
            && matches!((self.rax as i64).wrapping_neg(), 512 | 513 | 514 | 516)
        {
            regs.rax = self.orig_rax;
            regs.rip = self.rip.wrapping_sub(2);
            if (self.rax as i64).wrapping_neg() == 516 {
                regs.with_time_left();
            }
        }
        regs.orig_rax = NOT_IN_A_CALL;
        regs
    }

    /// Where the rest is told becomes what is asked for. Nobody looks at the place of a request again.
    fn with_time_left(&mut self) {
        match self.rax as i64 {
            libc::SYS_nanosleep if self.rsi != 0 => self.rdi = self.rsi,
            libc::SYS_clock_nanosleep if self.r10 != 0 => self.rdx = self.r10,
            _ => {}
        }
    }

    /// What an image says, cut down to what a program may have: an image must not give privileges.
    pub(crate) fn harmless(&self) -> Self {
        Self {
            cs: CODE_64,
            ss: DATA_64,
            eflags: self.eflags & USER_FLAGS | FLAGS_ALWAYS,
            orig_rax: NOT_IN_A_CALL,
            ..*self
        }
    }

    /// About to run the script at `script`, with the stub at `code`.
    pub(crate) fn running(&self, code: u64, script: u64) -> Self {
        Self {
            rip: code,
            rsp: script,
            orig_rax: NOT_IN_A_CALL,
            rax: 0,
            eflags: self.eflags & !TRAP_FLAG,
            ..*self
        }
    }

    /// About to run an errand at `code` that makes `call`.
    pub(crate) fn on_errand(&self, code: u64, call: &Call) -> Self {
        let Call { number, args } = *call;
        Self {
            rip: code,
            orig_rax: NOT_IN_A_CALL,
            rax: number as u64,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            eflags: self.eflags & !TRAP_FLAG,
            ..*self
        }
    }

    /// What the call of an errand returned, when the errand stands.
    pub(crate) fn errand_result(&self) -> i64 {
        self.rbx as i64
    }
}

/// The processor's other registers, as the kernel saves them.
pub(crate) fn extended(tid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; EXTENDED_MAX];
    let len = ptrace::registers(tid, EXTENDED, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

pub(crate) fn set_extended(tid: i32, bytes: &[u8]) -> io::Result<()> {
    ptrace::set_registers(tid, EXTENDED, bytes)
}

/// Which kinds of extended registers there are on this processor, from such an area.
pub(crate) fn features(extended: &[u8]) -> u64 {
    extended.get(464..472).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The same of this processor, as far as the kernel lets programs use it.
pub(crate) fn own_features() -> u64 {
    if !std::arch::is_x86_feature_detected!("xsave") {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: a processor with `xsave` whose kernel uses it has this instruction, which only reads.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// How an errand ends: it tells us with a signal that does nothing if nobody hears it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell {
    pub(crate) process: i32,
    pub(crate) thread: i32,
    pub(crate) signal: i32,
}

impl Bell {
    pub(crate) fn call(self) -> Call {
        let Self { process, thread, signal } = self;
        Call::new(libc::SYS_tgkill, &[process as u64, thread as u64, signal as u64])
    }
}

/// Code that makes one call, rings, and goes back to where `regs` was with mask and registers as
/// they were. It needs no memory but its own, so it is what makes room for scripts; and if we die
/// while it runs, the program goes on as if nothing had been.
pub(crate) fn errand(bell: Bell, mask: u64, regs: &Registers) -> Vec<u8> {
    let back = regs.restarted();
    let mut code = Code(Vec::with_capacity(256));
    code.syscall();
    code.bytes(&[0x48, 0x89, 0xc3]); // mov rbx, rax
    code.set_32(RAX, libc::SYS_tgkill as u32);
    code.set_32(RDI, bell.process as u32);
    code.set_32(RSI, bell.thread as u32);
    code.set_32(RDX, bell.signal as u32);
    code.syscall();
    code.set_32(RAX, libc::SYS_rt_sigprocmask as u32);
    code.set_32(RDI, libc::SIG_SETMASK as u32);
    code.bytes(&[0x48, 0x8d, 0x35]); // lea rsi, [rip + …]
    let hole = code.0.len();
    code.bytes(&[0; 4]);
    code.set_32(RDX, 0);
    code.set_32(R10, 8);
    code.syscall();
    let values = [
        (RAX, back.rax),
        (RCX, back.rcx),
        (RDX, back.rdx),
        (RBX, back.rbx),
        (RSI, back.rsi),
        (RDI, back.rdi),
        (R8, back.r8),
        (R9, back.r9),
        (R10, back.r10),
        (R11, back.r11),
    ];
    for (register, value) in values {
        code.set_64(register, value);
    }
    code.bytes(&[0xff, 0x25, 0, 0, 0, 0]); // jmp [rip]
    code.bytes(&back.rip.to_le_bytes());
    let distance = (code.0.len() - (hole + 4)) as u32;
    code.0[hole..hole + 4].copy_from_slice(&distance.to_le_bytes());
    code.bytes(&mask.to_le_bytes());
    code.0
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const RSI: u8 = 6;
const RDI: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const R10: u8 = 10;
const R11: u8 = 11;

struct Code(Vec<u8>);

impl Code {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn syscall(&mut self) {
        self.bytes(&[0x0f, 0x05]);
    }

    /// Moves only: flags stay as they are.
    fn set_32(&mut self, register: u8, value: u32) {
        if register >= 8 {
            self.bytes(&[0x41]);
        }
        self.bytes(&[0xb8 + (register & 7)]);
        self.bytes(&value.to_le_bytes());
    }

    fn set_64(&mut self, register: u8, value: u64) {
        self.bytes(&[0x48 | (register >> 3), 0xb8 + (register & 7)]);
        self.bytes(&value.to_le_bytes());
    }
}

/// Where `rt_sigreturn` finds the alternate stack, in words from the frame's beginning.
pub(crate) const FRAME_STACK: usize = 2;

/// What follows the last argument of `rt_sigreturn` in a script. It brings back registers, mask,
/// alternate stack and the extended registers at `extended`, which [`frame_extended`] made.
pub(crate) fn frame(regs: &Registers, mask: u64, extended: u64) -> Vec<u64> {
    let r = regs.restarted();
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let mut words = vec![7, 0, 0, 0, 0];
    words.extend([r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15]);
    words.extend([r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp, r.rip, r.eflags]);
    words.extend([segments, 0, 0, 0, 0, extended]);
    words.extend([0; 8]);
    words.push(mask);
    words
}

/// An area of extended registers in the form that a signal's frame has. It belongs on 64 bytes.
pub(crate) fn frame_extended(extended: &[u8]) -> Vec<u8> {
    const BEGIN: u32 = 0x4650_5853;
    const END: u32 = 0x4650_5845;
    let mut bytes = extended.to_vec();
    let features = features(extended);
    let len = bytes.len() as u32;
    bytes[464..468].copy_from_slice(&BEGIN.to_le_bytes());
    bytes[468..472].copy_from_slice(&(len + 4).to_le_bytes());
    bytes[472..480].copy_from_slice(&features.to_le_bytes());
    bytes[480..484].copy_from_slice(&len.to_le_bytes());
    bytes[484..512].fill(0);
    bytes.extend(END.to_le_bytes());
    bytes
}

/// Puts the kernel's own code and data at `start`, where it was. There must be none.
pub(crate) fn map_vdso(start: u64) -> Call {
    const MAP_VDSO_64: u64 = 0x2003;
    Call::new(libc::SYS_arch_prctl, &[MAP_VDSO_64, start])
}

/// Runs the script at `script` with the stub at `code`, and never comes back.
///
/// # Safety
///
/// The stub is at `code`, executable; a script is at `script`, writable; nothing that the script does
/// is to be undone by anybody.
pub(crate) unsafe fn enter(code: u64, script: u64) -> ! {
    // SAFETY: as the caller promised. The stack pointer becomes the script's.
    unsafe {
        std::arch::asm!(
            "mov rsp, {script}",
            "jmp {code}",
            script = in(reg) script,
            code = in(reg) code,
            options(noreturn),
        )
    }
}

/// The kernel writes to libc's area of restartable sequences whenever we are preempted; it must not
/// when the area is unmapped.
pub(crate) fn forget_rseq() {
    unsafe extern "C" {
        static __rseq_offset: isize;
        static __rseq_size: u32;
    }
    const UNREGISTER: u64 = 1;
    const SIGNATURE: u32 = 0x5305_3053;
    // SAFETY: libc sets both before `main` and never again. What is unregistered is only ever used by
    // libc to read the number of a processor, and it does without.
    unsafe {
        if __rseq_size == 0 {
            return;
        }
        let pointer: u64;
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly));
        let area = pointer.wrapping_add_signed(__rseq_offset as i64);
        // The size that it was registered with is 32 unless libc found that the kernel wants more.
        for size in [32, u64::from(__rseq_size).next_multiple_of(32)] {
            if libc::syscall(libc::SYS_rseq, area, size, UNREGISTER, SIGNATURE) == 0 {
                return;
            }
        }
    }
}
