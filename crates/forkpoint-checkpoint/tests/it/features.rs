//! What this kernel has and another may not: taken away from the engine, one by one. It does without, or says so;
//! nobody is harmed.

#![expect(unsafe_code, reason = "between fork and exec")]

use std::{
    io,
    os::unix::process::CommandExt as _,
    process::{Command, Output},
};

use forkpoint_checkpoint::Chain;

use crate::place::{PROGRAM, Place};

/// Something that a kernel may not have: a system call, or one with a certain second argument.
#[derive(Clone, Copy, Debug)]
struct Feature {
    name: &'static str,
    call: i64,
    second: Option<u32>,
    error: i32,
}

const fn call(name: &'static str, call: i64) -> Feature {
    Feature { name, call, second: None, error: libc::ENOSYS }
}

const SCAN: Feature = Feature {
    name: "PAGEMAP_SCAN",
    call: libc::SYS_ioctl,
    second: Some(0xc060_6610),
    error: libc::ENOTTY,
};
const USERFAULTFD: Feature = call("userfaultfd", libc::SYS_userfaultfd);
/// What an old kernel says to who wants writes noted.
const TRACKING: Feature = Feature {
    name: "UFFDIO_API",
    call: libc::SYS_ioctl,
    second: Some(0xc018_aa3f),
    error: libc::EINVAL,
};
const FAULT_DEVICE: Feature = Feature {
    name: "/dev/userfaultfd",
    call: libc::SYS_ioctl,
    second: Some(0xaa00),
    error: libc::ENOTTY,
};

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn unless(k: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter { code: 0x15, jt: 0, jf: skip, k }
}

/// The program, on a kernel without it.
fn without(feature: Feature) -> Command {
    const LOAD: u16 = 0x20;
    const RETURN: u16 = 0x06;
    const SECOND: u32 = 24;
    let mut code = vec![statement(LOAD, 0)];
    let more = if feature.second.is_some() { 3 } else { 1 };
    code.push(unless(feature.call as u32, more));
    if let Some(second) = feature.second {
        code.extend([statement(LOAD, SECOND), unless(second, 1)]);
    }
    code.push(statement(RETURN, libc::SECCOMP_RET_ERRNO | feature.error as u32));
    code.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    let mut command = Command::new(PROGRAM);
    // SAFETY: only system calls, on memory that was made before.
    unsafe {
        command.pre_exec(move || {
            let len = code.len() as u16;
            let program = libc::sock_fprog { len, filter: code.as_ptr().cast_mut() };
            match libc::syscall(libc::SYS_seccomp, 1, 0, &raw const program) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    };
    command
}

fn capture(place: &mut Place, init: i32, feature: Feature) -> Output {
    let path = place.dir.path().join(format!("without-{}", feature.call));
    // It runs meanwhile, but the files that it has are always the same.
    place.keep_files().unwrap();
    let output = without(feature)
        .args(["forkpoint-bare-capture", &init.to_string(), &u64::MAX.to_string()])
        .arg(&path)
        .output()
        .unwrap();
    if output.status.success() {
        place.images = vec![path];
    }
    output
}

/// A heap, a private view of a file that was written to, threads.
const PROGRAM_TEXT: &str = "
import mmap, os, threading, time, zlib
heap = bytearray(os.urandom(3 << 20))
file = os.open('/mnt/data', os.O_RDWR | os.O_CREAT); os.write(file, b'x' * 40960)
view = mmap.mmap(file, 40960, flags=mmap.MAP_PRIVATE); view[8192:8195] = b'own'
large = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000); large[777 << 20] = 7
threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
sum = zlib.crc32(heap)
count = os.open('/mnt/count', os.O_WRONLY | os.O_CREAT)
n = 0
while True:
    n += zlib.crc32(heap) == sum and view[8192:8196] == b'ownx' and large[777 << 20] == 7
    os.pwrite(count, str(n).encode(), 0)
    time.sleep(0.002)
";

#[test]
fn a_capture_does_without_what_is_not_there() {
    let mut place = Place::new();
    let mut sandbox = place.python(PROGRAM_TEXT);
    place.grows("count", 2);
    for feature in [SCAN, USERFAULTFD] {
        let output = capture(&mut place, sandbox.init, feature);
        assert!(output.status.success(), "without {}: {output:?}", feature.name);
        let now = place.number("count");
        place.grows("count", now);
        drop(sandbox);
        sandbox = place.restore();
        let now = place.number("count");
        place.grows("count", now + 2);
    }
}

/// On a kernel that notes no writes, everything is captured each time, and nobody asks for more.
#[test]
fn without_notes_of_what_was_written_all_is_captured_each_time() {
    let mut place = Place::new();
    let mut sandbox = place.python(PROGRAM_TEXT);
    place.grows("count", 2);
    for feature in [USERFAULTFD, TRACKING] {
        let images = ["one", "two"].map(|name| place.dir.path().join(name));
        place.keep_files().unwrap();
        let output = without(feature)
            .args(["forkpoint-bare-track", &sandbox.init.to_string(), &u64::MAX.to_string()])
            .args(&images)
            .output()
            .unwrap();
        assert!(output.status.success(), "without {}: {output:?}", feature.name);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "nothing is noted\n");
        for image in &images {
            // One that lies over nothing.
            let chain = Chain::open([image.clone()]).unwrap();
            assert!(chain.top().pages_len_bytes > 3 << 20);
        }
        place.images = vec![images[1].clone()];
        let now = place.number("count");
        place.grows("count", now);
        drop(sandbox);
        sandbox = place.restore();
        let now = place.number("count");
        place.grows("count", now + 2);
        images.iter().for_each(|image| std::fs::remove_dir_all(image).unwrap());
    }
}

#[test]
fn a_capture_that_cannot_do_without_says_so_and_harms_nobody() {
    let mut place = Place::new();
    let sandbox = place.python(PROGRAM_TEXT);
    place.grows("count", 2);
    for feature in [
        call("pidfd_open", libc::SYS_pidfd_open),
        call("pidfd_getfd", libc::SYS_pidfd_getfd),
        call("kcmp", libc::SYS_kcmp),
        call("process_vm_readv", libc::SYS_process_vm_readv),
        call("openat2", libc::SYS_openat2),
        call("ptrace", libc::SYS_ptrace),
    ] {
        let output = capture(&mut place, sandbox.init, feature);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "without {}", feature.name);
        assert!(told.contains("Function not implemented"), "without {}: {told}", feature.name);
        let now = place.number("count");
        place.grows("count", now + 1);
    }
    // Nothing is left of it.
    place.capture(&sandbox);
}

#[test]
fn a_restore_does_without_or_says_so_and_leaves_nothing() {
    let mut place = Place::new();
    let sandbox = place.python(PROGRAM_TEXT);
    place.grows("count", 2);
    place.capture(&sandbox);
    drop(sandbox);
    let spec = forkpoint_checkpoint::bare::BareSpec {
        images: place.images.clone(),
        lazy: true,
        ..place.spec()
    };
    let spec = serde_json::to_string(&spec).unwrap();
    for (feature, works) in [
        (FAULT_DEVICE, true),
        (USERFAULTFD, true),
        (call("clone3", libc::SYS_clone3), false),
        (call("close_range", libc::SYS_close_range), false),
        (call("openat2", libc::SYS_openat2), false),
        (call("pidfd_open", libc::SYS_pidfd_open), false),
    ] {
        place.bring_files_back();
        let mut launcher = without(feature)
            .args(["forkpoint-bare-sandbox", &spec])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = io::BufReader::new(launcher.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        let name = feature.name;
        assert_eq!(line.starts_with("ready "), works, "without {name}: {line}");
        if works {
            let now = place.number("count");
            place.grows("count", now + 2);
            let init: i32 = line.split(' ').nth(1).unwrap().parse().unwrap();
            let init = rustix::process::Pid::from_raw(init).unwrap();
            rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
        } else {
            assert!(
                line.contains("Function not implemented") || line.contains("not brought back"),
                "without {name}: {line}"
            );
        }
        launcher.wait().unwrap();
    }
    let _copy = place.restore();
    let now = place.number("count");
    place.grows("count", now + 2);
}
