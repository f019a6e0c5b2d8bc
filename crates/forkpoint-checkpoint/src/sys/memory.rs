//! Memory of other processes: bytes, which pages there are, and which were written.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
    time::Duration,
};

use super::{Deadline, PAGE, Patience, check, step};
use crate::ranges::{self, Range};

/// The kernel takes so many pieces at once.
const VECTOR_MAX: usize = 1024;

fn vector(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut _, iov_len: len }
}

/// Exactly `buffer`, or an error.
pub(crate) fn read(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let local = vector(buffer.as_mut_ptr() as u64, buffer.len());
    let remote = vector(address, buffer.len());
    // SAFETY: the local vector is `buffer`, which is ours to write; the other is checked by the kernel.
    let got =
        check(
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) }
                as i64,
        )?;
    whole(got, buffer.len())
}

/// The beginning of a file, of which nobody who watches it is told. Within a page, and an error if the file is shorter.
pub(crate) fn peek(file: impl AsFd, buffer: &mut [u8]) -> io::Result<()> {
    let (len, fd) = (PAGE as usize, file.as_fd().as_raw_fd());
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // From outside, so to speak: where the file has ended meanwhile, that is an error and no signal.
    let result = read(rustix::process::getpid().as_raw_pid(), page as u64, buffer);
    // SAFETY: mapped just now, and no reference leads there.
    unsafe { libc::munmap(page, len) };
    result
}

pub(crate) fn write(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    step();
    let local = vector(bytes.as_ptr() as u64, bytes.len());
    let remote = vector(address, bytes.len());
    // SAFETY: the local vector is only read, and is `bytes`; the other is checked by the kernel.
    let got =
        check(
            unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) }
                as i64,
        )?;
    whole(got, bytes.len())
}

/// Reads ranges one behind the other into `buffer`, which is as long as they are together.
pub(crate) fn gather(pid: i32, ranges: &[(u64, u64)], buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    for ranges in ranges.chunks(VECTOR_MAX) {
        let remote: Vec<_> =
            ranges.iter().map(|(start, end)| vector(*start, (end - start) as usize)).collect();
        let len: usize = remote.iter().map(|piece| piece.iov_len).sum();
        let Some(part) = buffer.get_mut(done..done + len) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let local = vector(part.as_mut_ptr() as u64, len);
        // SAFETY: the local vector is `part`, which is ours to write.
        let got = check(unsafe {
            libc::process_vm_readv(
                pid,
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as u64,
                0,
            )
        } as i64)?;
        whole(got, len)?;
        done += len;
    }
    Ok(())
}

/// The other way: writes `bytes`, which are as many as the ranges have together, to where a program may write.
pub(crate) fn scatter(pid: i32, ranges: &[(u64, u64)], bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    for ranges in ranges.chunks(VECTOR_MAX) {
        step();
        let remote: Vec<_> =
            ranges.iter().map(|(start, end)| vector(*start, (end - start) as usize)).collect();
        let len: usize = remote.iter().map(|piece| piece.iov_len).sum();
        let Some(part) = bytes.get(done..done + len) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let local = vector(part.as_ptr() as u64, len);
        // SAFETY: the local vector is `part`, which is only read.
        let got = check(unsafe {
            libc::process_vm_writev(
                pid,
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as u64,
                0,
            )
        } as i64)?;
        whole(got, len)?;
        done += len;
    }
    Ok(())
}

fn whole(got: i64, wanted: usize) -> io::Result<()> {
    if got as usize == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Which pages are asked for. See `PAGEMAP_SCAN` in the kernel's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    flags: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    wanted: u64,
}

const WRITTEN: u64 = 1 << 1;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
const GUARD: u64 = 1 << 8;
const PROTECT: u64 = 1;
const MUST_BE_TRACKED: u64 = 2;

/// What is there, or looks as if it were swapped: [`scan_at_rest`] knows what that is.
const PERHAPS: u64 = PRESENT | SWAPPED;

/// Pages of memory without a file. Asking about files looks up each page, and so is apart.
pub(crate) const ANONYMOUS: Query =
    Query { flags: 0, inverted: ZERO, mask: ZERO, any_of: PERHAPS, wanted: PERHAPS };
/// Private copies of pages of a file.
pub(crate) const COPIED: Query =
    Query { flags: 0, inverted: ZERO | FILE, mask: ZERO | FILE, any_of: PERHAPS, wanted: PERHAPS };
/// Pages that nobody may touch.
pub(crate) const GUARDS: Query =
    Query { flags: 0, inverted: 0, mask: GUARD, any_of: 0, wanted: GUARD };
/// Whatever is there, empty pages too.
pub(crate) const THERE: Query =
    Query { flags: 0, inverted: 0, mask: 0, any_of: PERHAPS, wanted: PERHAPS };
/// Written since the last time, and tracked from now on again. Also what was thrown away since.
pub(crate) const WRITTEN_SINCE: Query = Query {
    flags: PROTECT | MUST_BE_TRACKED,
    inverted: 0,
    mask: WRITTEN,
    any_of: 0,
    wanted: WRITTEN,
};
/// The same, and only looked at: what it tells now it tells again.
pub(crate) const WRITTEN_SO_FAR: Query = Query { flags: MUST_BE_TRACKED, ..WRITTEN_SINCE };

#[repr(C)]
#[derive(Default)]
struct ScanArgs {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    pages_max: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    wanted: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;

/// Ranges of pages in `range` that `query` asks for, in order and joined where they touch.
pub(crate) fn scan(
    pagemap: impl AsFd,
    range: Range,
    query: &Query,
    found: &mut Vec<Range>,
) -> io::Result<()> {
    regions(&pagemap, range, query, |region, _| join(found, region))
}

/// The same for queries of what is there. While the kernel moves a page from one place to another, as it does at any time
/// to have large pieces free, the page is not there and looks as if it were swapped: that is waited for, `among` those of
/// which it matters. To look more closely at what is not there takes long where that is much.
pub(crate) fn scan_at_rest(
    pagemap: impl AsFd,
    range: Range,
    query: &Query,
    among: &[Range],
    found: &mut Vec<Range>,
) -> io::Result<()> {
    const LONG: Duration = Duration::from_secs(2);
    let (limit, mut patience) = (Deadline::after(LONG), Patience::default());
    let mut there = Vec::new();
    let mut left = vec![range];
    loop {
        let mut away = Vec::new();
        for range in left {
            let list = |region, categories: u64| match categories & SWAPPED {
                0 => join(&mut there, region),
                _ => join(&mut away, region),
            };
            regions(&pagemap, range, query, list)?;
        }
        left = moving(&pagemap, &ranges::both(&away, among))?;
        if left.is_empty() {
            break;
        }
        if limit.passed() {
            return Err(io::Error::other("a part of it was swapped out meanwhile; try again"));
        }
        patience.wait();
    }
    // What was waited for came last.
    ranges::either(&there, &[]).into_iter().for_each(|range| join(found, range));
    Ok(())
}

fn join(ranges: &mut Vec<Range>, (start, end): Range) {
    match ranges.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => ranges.push((start, end)),
    }
}

/// Tells of each range with what it is of all that `query` wants to be told.
fn regions(
    pagemap: impl AsFd,
    range: Range,
    query: &Query,
    mut tell: impl FnMut(Range, u64),
) -> io::Result<()> {
    let mut regions = [Region::default(); 512];
    let mut start = range.0;
    while start < range.1 {
        let mut args = ScanArgs {
            size: size_of::<ScanArgs>() as u64,
            flags: query.flags,
            start,
            end: range.1,
            regions: regions.as_mut_ptr() as u64,
            regions_len: regions.len() as u64,
            inverted: query.inverted,
            mask: query.mask,
            any_of: query.any_of,
            wanted: query.wanted,
            ..ScanArgs::default()
        };
        let fd = pagemap.as_fd().as_raw_fd();
        // SAFETY: `args` has the size that it tells, and `regions` the length that `args` tells.
        let count =
            check(unsafe { libc::ioctl(fd, PAGEMAP_SCAN, ptr::from_mut(&mut args)) }.into());
        let count = match count {
            // Linux before 6.7 tells of each page by itself.
            Err(err) if err.raw_os_error() == Some(libc::ENOTTY) => {
                return regions_slowly(pagemap, range, query, tell);
            }
            count => count?,
        };
        for region in &regions[..(count as usize).min(512)] {
            tell((region.start, region.end), region.categories);
        }
        if args.walk_end <= start {
            break;
        }
        start = args.walk_end;
    }
    Ok(())
}

/// As [`regions`], page by page. Empty pages count as pages, and nothing is known of guards or writes.
fn regions_slowly(
    pagemap: impl AsFd,
    range: Range,
    query: &Query,
    mut tell: impl FnMut(Range, u64),
) -> io::Result<()> {
    if query.mask & WRITTEN != 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if query.mask & GUARD != 0 {
        return Ok(());
    }
    let not_of_files = query.inverted & FILE != 0;
    entries(pagemap, range, |page, entry| {
        if !(not_of_files && entry.is_file()) && (entry.is_present() || entry.is_swapped()) {
            tell(page, if entry.is_present() { PRESENT } else { SWAPPED });
        }
    })
}

/// What `/proc/PID/pagemap` says of a page.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    fn is_present(self) -> bool {
        self.has(63)
    }

    fn is_swapped(self) -> bool {
        self.has(62)
    }

    fn is_file(self) -> bool {
        self.has(61)
    }

    /// What stands where no page is, because it is tracked or nobody may touch it.
    fn is_marker(self) -> bool {
        const KIND: u64 = (1 << 5) - 1;
        const MARKER: u64 = 31;
        let place = self.0 & ((1 << 55) - 1);
        // Which it is the kernel tells only to root of the host. Others see that it is tracked, or a guard.
        let is_likely = self.has(57) || self.has(58);
        if place == 0 { is_likely } else { place & KIND == MARKER }
    }
}

/// Of pages that are not there, those that are on their way, or have come meanwhile.
fn moving(pagemap: impl AsFd, away: &[Range]) -> io::Result<Vec<Range>> {
    let mut moving = Vec::new();
    for range in away {
        entries(&pagemap, *range, |page, entry| {
            if entry.is_present() || entry.is_swapped() && !entry.is_marker() {
                join(&mut moving, page);
            }
        })?;
    }
    Ok(moving)
}

fn entries(
    pagemap: impl AsFd,
    (start, end): Range,
    mut tell: impl FnMut(Range, Entry),
) -> io::Result<()> {
    const AT_ONCE: usize = 4096;
    let mut buffer = [0; 8 * AT_ONCE];
    let mut page = start / PAGE;
    while page < end / PAGE {
        let wanted = AT_ONCE.min((end / PAGE - page) as usize);
        let len = rustix::io::pread(&pagemap, &mut buffer[..8 * wanted], 8 * page)?;
        if len < 8 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for entry in buffer[..len].as_chunks::<8>().0 {
            tell((page * PAGE, (page + 1) * PAGE), Entry(u64::from_ne_bytes(*entry)));
            page += 1;
        }
    }
    Ok(())
}

/// Of this process.
pub(crate) fn new_userfaultfd() -> io::Result<OwnedFd> {
    // SAFETY: takes flags, and makes a descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, USERFAULTFD_FLAGS) })?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Faults of the kernel are none of ours, and need rights.
pub(crate) const USERFAULTFD_FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK | 1;

/// Makes a userfaultfd note what is written, without asking anybody.
pub(crate) fn track_writes(uffd: impl AsFd) -> io::Result<()> {
    const API: libc::Ioctl = 0xc018_aa3f;
    const WRITES_ASYNC: u64 = 1 << 15;
    let mut args = [0xaa_u64, WRITES_ASYNC, 0];
    // SAFETY: the request takes three words.
    check(unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), API, args.as_mut_ptr()) }.into()).map(drop)
}

/// Whether the memory that a userfaultfd belongs to is still there: a process that became another program
/// has other memory.
pub(crate) fn has_memory(uffd: impl AsFd) -> bool {
    const UNREGISTER: libc::Ioctl = 0x8010_aa01;
    // Nothing can be mapped there, so nothing is ever found.
    let mut range = [PAGE, PAGE];
    // SAFETY: the request takes two words.
    let result = unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), UNREGISTER, range.as_mut_ptr()) };
    check(result.into()).err().and_then(|err| err.raw_os_error()) != Some(libc::ENOMEM)
}

/// Begins tracking of a range.
pub(crate) fn track_range(uffd: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    const REGISTER: libc::Ioctl = 0xc020_aa00;
    const WRITE_PROTECT: u64 = 2;
    let mut args = [start, end - start, WRITE_PROTECT, 0];
    // SAFETY: the request takes four words.
    check(unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), REGISTER, args.as_mut_ptr()) }.into())
        .map(drop)
}
