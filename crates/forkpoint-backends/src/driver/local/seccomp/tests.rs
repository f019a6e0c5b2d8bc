use std::{fs::File, ops::RangeInclusive, process::Command, thread};

use libc::{SECCOMP_RET_ALLOW as ALLOW, sock_filter};

use super::{
    assemble::ARCHITECTURE,
    filter, install,
    table::{RULES, Rule},
};

const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const NO_FAMILY: u32 = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
const HIGH: u64 = 0xdead_beef_0000_0000;

/// What the kernel would do, as far as our programs go.
fn run(code: &[sock_filter], architecture: u32, number: u32, arguments: &[u64]) -> u32 {
    let mut data = vec![number, architecture, 0, 0];
    for at in 0..6 {
        let argument = arguments.get(at).copied().unwrap_or(0);
        data.extend([argument as u32, (argument >> 32) as u32]);
    }
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let sock_filter { code: operation, jt, jf, k } = code[at];
        at += 1;
        let holds = match operation {
            0x20 => {
                accumulator = data[k as usize / 4];
                continue;
            }
            0x06 => return k,
            0x15 => accumulator == k,
            0x35 => accumulator >= k,
            0x45 => accumulator & k != 0,
            other => panic!("instruction {other:#x}"),
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

fn verdict(number: libc::c_long, arguments: &[u64]) -> u32 {
    run(filter().0.code(), ARCHITECTURE, number as u32, arguments)
}

#[test]
fn is_small_and_has_an_end() {
    let code = filter().0.code();
    assert!(code.len() < 200, "{} instructions", code.len());
    for (at, instruction) in code.iter().enumerate() {
        let furthest = at + 1 + usize::from(instruction.jt.max(instruction.jf));
        assert!(instruction.code == 0x06 || furthest < code.len(), "{at}");
    }
}

#[test]
fn every_number_gets_its_rule() {
    for (number, rule) in RULES.iter().enumerate() {
        let expected = match rule {
            Rule::Allow | Rule::Clone | Rule::Ioctl | Rule::Personality => ALLOW,
            Rule::Refuse => REFUSE,
            Rule::Unknown => UNKNOWN,
            Rule::Socket | Rule::SocketPair => NO_FAMILY,
        };
        assert_eq!(verdict(number as libc::c_long, &[]), expected, "call {number}");
    }
    const X32: u32 = 1 << 30;
    for number in [RULES.len() as u32, 1000, X32, X32 | 1, X32 | 59, u32::MAX] {
        assert_eq!(verdict(number.into(), &[]), UNKNOWN, "call {number:#x}");
    }
}

#[test]
fn every_call_was_judged() {
    // Numbers that no call has, or no call has any more; and `clone3`.
    #[cfg(target_arch = "x86_64")]
    let unknown: &[RangeInclusive<usize>] =
        &[174..=174, 177..=178, 181..=185, 214..=215, 236..=236, 335..=423, 435..=435];
    #[cfg(target_arch = "aarch64")]
    let unknown: &[RangeInclusive<usize>] = &[244..=259, 295..=423, 435..=435];
    for (number, rule) in RULES.iter().enumerate() {
        let expected = unknown.iter().any(|range| range.contains(&number));
        assert_eq!(*rule == Rule::Unknown, expected, "call {number}");
    }
}

#[test]
fn looks_at_what_is_asked() {
    let (thread, new_user) = (0x3d_0f00, u64::from(libc::CLONE_NEWUSER as u32) | 17);
    let (unix, inet, inet6, netlink, packet, alg, vsock) = (1, 2, 10, 16, 17, 38, 40);
    let table: &[(libc::c_long, &[u64], u32)] = &[
        (libc::SYS_read, &[], ALLOW),
        (libc::SYS_execve, &[], ALLOW),
        (libc::SYS_ptrace, &[], ALLOW),
        (libc::SYS_chroot, &[], ALLOW),
        (libc::SYS_name_to_handle_at, &[], ALLOW),
        (libc::SYS_open_by_handle_at, &[], REFUSE),
        (libc::SYS_mount, &[], REFUSE),
        (libc::SYS_unshare, &[], REFUSE),
        (libc::SYS_setns, &[], REFUSE),
        (libc::SYS_bpf, &[], REFUSE),
        (libc::SYS_keyctl, &[], REFUSE),
        (libc::SYS_io_uring_setup, &[], REFUSE),
        (libc::SYS_clock_settime, &[], REFUSE),
        (libc::SYS_clone3, &[], UNKNOWN),
        (libc::SYS_clone, &[17], ALLOW),
        (libc::SYS_clone, &[thread], ALLOW),
        (libc::SYS_clone, &[new_user], REFUSE),
        (libc::SYS_clone, &[HIGH | new_user], REFUSE),
        (libc::SYS_clone, &[0x0002_0000], REFUSE),
        (libc::SYS_clone, &[0x0200_0000], REFUSE),
        (libc::SYS_clone, &[0x4000_0000], REFUSE),
        (libc::SYS_ioctl, &[0, 0x5401], ALLOW),
        (libc::SYS_ioctl, &[0, 0x5412], REFUSE),
        (libc::SYS_ioctl, &[0, HIGH | 0x5412], REFUSE),
        (libc::SYS_ioctl, &[0, 0x541c], REFUSE),
        (libc::SYS_ioctl, &[0x5412, 0], ALLOW),
        (libc::SYS_personality, &[0xffff_ffff], ALLOW),
        (libc::SYS_personality, &[u64::MAX], ALLOW),
        (libc::SYS_personality, &[0x2_0008], ALLOW),
        (libc::SYS_personality, &[0x4_0000], ALLOW),
        (libc::SYS_personality, &[0x40_0000], REFUSE),
        (libc::SYS_socket, &[unix, 1, 0], ALLOW),
        (libc::SYS_socket, &[inet, 1, 6], ALLOW),
        (libc::SYS_socket, &[inet6, 2, 0], ALLOW),
        (libc::SYS_socket, &[netlink, 3, 0], ALLOW),
        (libc::SYS_socket, &[netlink, 3, 9], NO_FAMILY),
        (libc::SYS_socket, &[packet, 3, 0], NO_FAMILY),
        (libc::SYS_socket, &[alg, 5, 0], NO_FAMILY),
        (libc::SYS_socket, &[vsock, 1, 0], NO_FAMILY),
        (libc::SYS_socket, &[HIGH | vsock, 1, 0], NO_FAMILY),
        (libc::SYS_socketpair, &[unix], ALLOW),
        (libc::SYS_socketpair, &[vsock], NO_FAMILY),
    ];
    for (number, arguments, expected) in table {
        assert_eq!(verdict(*number, arguments), *expected, "call {number} of {arguments:x?}");
    }
}

#[test]
fn another_architecture_is_killed() {
    for foreign in [0x4000_0003, 0x4000_0028, 0xc000_00f3] {
        assert_eq!(run(filter().0.code(), foreign, 1, &[]), libc::SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn the_kernel_does_the_same() {
    // A filter is for a thread, and ends with it.
    let under_filter = thread::spawn(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        install(filter()).unwrap();

        assert!(std::process::id() > 0);
        File::open("/proc/self/status").unwrap();
        assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
        let work = Command::new("sh").args(["-c", "ls -l / | sort >/dev/null & wait $!"]).status();
        assert!(work.unwrap().success());
        assert!(call(libc::SYS_socket, [1, 1, 0]).is_ok());
        let refused = [
            (libc::SYS_socket, [40, 1, 0], libc::EAFNOSUPPORT),
            (libc::SYS_socket, [16, 3, 9], libc::EAFNOSUPPORT),
            (libc::SYS_unshare, [0x0400_0000, 0, 0], libc::EPERM),
            (libc::SYS_unshare, [0, 0, 0], libc::EPERM),
            (libc::SYS_clone, [0x1000_0000 | 17, 0, 0], libc::EPERM),
            (libc::SYS_clone3, [0, 0, 0], libc::ENOSYS),
            (libc::SYS_personality, [0x40_0000, 0, 0], libc::EPERM),
            (5000, [0, 0, 0], libc::ENOSYS),
        ];
        for (number, arguments, errno) in refused {
            assert_eq!(call(number, arguments), Err(errno), "call {number} of {arguments:x?}");
        }
    });
    under_filter.join().unwrap();
    assert_eq!(call(libc::SYS_unshare, [0, 0, 0]), Ok(0), "only that thread is under the filter");
}

fn call(number: libc::c_long, [a, b, c]: [libc::c_long; 3]) -> Result<libc::c_long, i32> {
    // SAFETY: none of the calls here has a pointer among its arguments.
    let result = unsafe { libc::syscall(number, a, b, c) };
    if result >= 0 {
        Ok(result)
    } else {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap())
    }
}
