//! The calls, and what becomes of each.

/// What is done about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Allow,
    /// `EPERM`: it exists, and is not for a sandbox.
    Refuse,
    /// `ENOSYS`: as if the kernel did not have it.
    Unknown,
    /// Not into new namespaces.
    Clone,
    /// Not to type into a terminal.
    Ioctl,
    /// Only what changes nothing for the kernel.
    Personality,
    /// Only networks that stay inside: a virtual machine's `AF_VSOCK` leads to its host.
    Socket,
    SocketPair,
}

/// The newest call that was judged (`file_setattr`, Linux 6.17).
const NEWEST: usize = 469;

pub(super) static RULES: [Rule; NEWEST + 1] = rules();

const fn rules() -> [Rule; NEWEST + 1] {
    let mut rules = [Rule::Unknown; NEWEST + 1];
    set(&mut rules, Rule::Allow, ALLOWED);
    set(&mut rules, Rule::Allow, ALLOWED_HERE);
    set(&mut rules, Rule::Allow, ALLOWED_UNNAMED);
    set(&mut rules, Rule::Allow, ALLOWED_NEW);
    set(&mut rules, Rule::Refuse, REFUSED);
    set(&mut rules, Rule::Refuse, REFUSED_HERE);
    set(&mut rules, Rule::Refuse, REFUSED_NEW);
    set(&mut rules, Rule::Clone, &[libc::SYS_clone]);
    set(&mut rules, Rule::Ioctl, &[libc::SYS_ioctl]);
    set(&mut rules, Rule::Personality, &[libc::SYS_personality]);
    set(&mut rules, Rule::Socket, &[libc::SYS_socket]);
    set(&mut rules, Rule::SocketPair, &[libc::SYS_socketpair]);
    rules
}

const fn set(rules: &mut [Rule], rule: Rule, numbers: &[libc::c_long]) {
    let mut at = 0;
    while at < numbers.len() {
        let number = numbers[at] as usize;
        assert!(matches!(rules[number], Rule::Unknown), "a call has two rules");
        rules[number] = rule;
        at += 1;
    }
}

macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// `ptrace` and its relatives reach only what the kernel lets them, and do not lead around this
/// filter since Linux 4.8.
const ALLOWED: &[libc::c_long] = calls! {
    SYS_accept SYS_accept4 SYS_bind SYS_brk SYS_capget SYS_capset SYS_chdir SYS_chroot
    SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_close SYS_connect
    SYS_copy_file_range SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
    SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat SYS_fadvise64
    SYS_fallocate SYS_fanotify_mark SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat
    SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_flistxattr SYS_flock SYS_fremovexattr SYS_fsetxattr
    SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex SYS_get_robust_list SYS_getcpu
    SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer
    SYS_getpeername SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid
    SYS_getresuid SYS_getrusage SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid
    SYS_gettimeofday SYS_getuid SYS_getxattr SYS_inotify_add_watch SYS_inotify_init1
    SYS_inotify_rm_watch SYS_io_cancel SYS_io_destroy SYS_io_getevents SYS_io_setup SYS_io_submit
    SYS_ioprio_get SYS_ioprio_set SYS_kill SYS_lgetxattr SYS_linkat SYS_listen SYS_listxattr
    SYS_llistxattr SYS_lremovexattr SYS_lseek SYS_lsetxattr SYS_madvise SYS_membarrier
    SYS_memfd_create SYS_mincore SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap
    SYS_mprotect SYS_mq_getsetattr SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend
    SYS_mq_unlink SYS_mremap SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_msync SYS_munlock
    SYS_munlockall SYS_munmap SYS_name_to_handle_at SYS_nanosleep SYS_newfstatat SYS_openat
    SYS_pipe2 SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll SYS_prctl SYS_pread64
    SYS_preadv SYS_preadv2 SYS_prlimit64 SYS_process_vm_readv SYS_process_vm_writev SYS_pselect6
    SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead SYS_readlinkat
    SYS_readv SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_remap_file_pages SYS_removexattr
    SYS_renameat2 SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigpending
    SYS_rt_sigprocmask SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait
    SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max SYS_sched_get_priority_min
    SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler
    SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam
    SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop
    SYS_semtimedop SYS_sendfile SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list
    SYS_set_tid_address SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_setitimer
    SYS_setpgid SYS_setpriority SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid
    SYS_setsockopt SYS_setuid SYS_setxattr SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget SYS_shutdown
    SYS_sigaltstack SYS_signalfd4 SYS_splice SYS_statfs SYS_statx SYS_symlinkat SYS_sync SYS_syncfs
    SYS_sysinfo SYS_tee SYS_tgkill SYS_timer_create SYS_timer_delete SYS_timer_getoverrun
    SYS_timer_gettime SYS_timer_settime SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime
    SYS_times SYS_tkill SYS_truncate SYS_umask SYS_uname SYS_unlinkat SYS_utimensat SYS_vmsplice
    SYS_wait4 SYS_waitid SYS_write SYS_writev
};

/// Older forms of calls.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = calls! {
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create
    SYS_epoll_wait SYS_eventfd SYS_fork SYS_futimesat SYS_get_thread_area SYS_getdents SYS_getpgrp
    SYS_getrlimit SYS_inotify_init SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_modify_ldt
    SYS_open SYS_pause SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_renameat SYS_rmdir SYS_select
    SYS_set_thread_area SYS_setrlimit SYS_signalfd SYS_stat SYS_symlink SYS_sync_file_range
    SYS_time SYS_unlink SYS_utime SYS_utimes SYS_vfork
};

#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[libc::c_long] = &[];

// What libc has no name for, at least here.

#[cfg(target_arch = "x86_64")]
const ALLOWED_UNNAMED: &[libc::c_long] = &[
    333, // io_pgetevents
];

#[cfg(target_arch = "aarch64")]
const ALLOWED_UNNAMED: &[libc::c_long] = &[
    38,  // renameat
    84,  // sync_file_range
    163, // getrlimit
    164, // setrlimit
    292, // io_pgetevents
];

/// Mounts and namespaces, the kernel itself, the machine's clock, accounts and devices, other
/// sandboxes' keys, and doors with a bad history.
const REFUSED: &[libc::c_long] = calls! {
    SYS_acct SYS_add_key SYS_adjtimex SYS_bpf SYS_clock_adjtime SYS_clock_settime SYS_delete_module
    SYS_fanotify_init SYS_finit_module SYS_get_mempolicy SYS_init_module SYS_kcmp SYS_kexec_load
    SYS_keyctl SYS_lookup_dcookie SYS_mbind SYS_migrate_pages SYS_mount SYS_move_pages
    SYS_nfsservctl SYS_open_by_handle_at SYS_perf_event_open SYS_pivot_root SYS_quotactl SYS_reboot
    SYS_request_key SYS_set_mempolicy SYS_setdomainname SYS_sethostname SYS_setns SYS_settimeofday
    SYS_swapoff SYS_swapon SYS_syslog SYS_umount2 SYS_unshare SYS_userfaultfd SYS_vhangup
};

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] = calls! {
    SYS__sysctl SYS_ioperm SYS_iopl SYS_kexec_file_load SYS_sysfs SYS_uselib SYS_ustat
};

#[cfg(target_arch = "aarch64")]
const REFUSED_HERE: &[libc::c_long] = &[
    294, // kexec_file_load, which musl has no name for
];

// From 424 on, a call has one number on all architectures. `clone3` (435) is in neither list: a
// filter cannot see its flags, and without it C libraries use `clone`.

const ALLOWED_NEW: &[libc::c_long] = &[
    424, // pidfd_send_signal
    434, // pidfd_open
    436, // close_range
    437, // openat2
    438, // pidfd_getfd
    439, // faccessat2
    440, // process_madvise
    441, // epoll_pwait2
    444, // landlock_create_ruleset
    445, // landlock_add_rule
    446, // landlock_restrict_self
    447, // memfd_secret
    448, // process_mrelease
    449, // futex_waitv
    451, // cachestat
    452, // fchmodat2
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    457, // statmount
    458, // listmount
    459, // lsm_get_self_attr
    461, // lsm_list_modules
    462, // mseal
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
    468, // file_getattr
    469, // file_setattr
];

const REFUSED_NEW: &[libc::c_long] = &[
    425, // io_uring_setup
    426, // io_uring_enter
    427, // io_uring_register
    428, // open_tree
    429, // move_mount
    430, // fsopen
    431, // fsconfig
    432, // fsmount
    433, // fspick
    442, // mount_setattr
    443, // quotactl_fd
    450, // set_mempolicy_home_node
    460, // lsm_set_self_attr
    467, // open_tree_attr
];
