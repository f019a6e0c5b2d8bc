//! From rules to a program for the kernel.
//!
//! The program is written from its end to its beginning. Its jumps only go forward, so where one
//! leads to has been written before it.

use std::fmt;

use libc::sock_filter;

use super::table::Rule;

/// Jumps reach 255 instructions, so a program of this size needs no others.
const INSTRUCTIONS_MAX: usize = 256;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

// Where things are in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE_OF_CALL: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

/// Those that make namespaces. `CLONE_NEWTIME` is not among them: `clone` takes its bit for a part
/// of the signal.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// These put characters into a terminal's input, which may be the one outside.
const TERMINAL_INPUT: [u32; 2] = [0x5412, 0x541c];

/// Linux and Linux 32 bit, each with `UNAME26`; the question; and `ADDR_NO_RANDOMIZE`, for
/// debuggers.
const PERSONALITIES: [u32; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff, 0x4_0000];

const FAMILIES: [u32; 3] = [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32];

/// How many instructions have been written after an instruction; stays true whatever is written
/// before it.
type Place = usize;

pub(super) struct Program {
    code: [sock_filter; INSTRUCTIONS_MAX],
    len: usize,
}

/// Where each rule is carried out.
struct Targets {
    allow: Place,
    refuse: Place,
    unknown: Place,
    clone: Place,
    ioctl: Place,
    personality: Place,
    socket: Place,
    socketpair: Place,
}

impl Program {
    pub(super) fn code(&self) -> &[sock_filter] {
        &self.code[INSTRUCTIONS_MAX - self.len..]
    }

    /// `rules[n]` is for call `n`; calls beyond are unknown.
    pub(super) const fn of(rules: &[Rule]) -> Self {
        let nothing = sock_filter { code: 0, jt: 0, jf: 0, k: 0 };
        let mut program = Self { code: [nothing; INSTRUCTIONS_MAX], len: 0 };
        let targets = program.targets();
        let search = program.search(rules, &targets, 0, rules.len());
        let search = program.branch(IF_AT_LEAST, rules.len() as u32, targets.unknown, search);
        assert!(search + 1 == program.len, "what follows is run next");
        let ours = program.push(LOAD, NUMBER);
        // A call of another architecture has other numbers. Which program made it should be seen.
        let foreign = program.push(RETURN, libc::SECCOMP_RET_KILL_PROCESS);
        program.branch(IF_EQUAL, ARCHITECTURE, ours, foreign);
        program.push(LOAD, ARCHITECTURE_OF_CALL);
        program
    }

    const fn targets(&mut self) -> Targets {
        let allow = self.push(RETURN, libc::SECCOMP_RET_ALLOW);
        let refuse = self.fail(libc::EPERM);
        let unknown = self.fail(libc::ENOSYS);
        let no_family = self.fail(libc::EAFNOSUPPORT);

        let has_namespaces = self.branch(IF_ANY_BIT, NAMESPACES, refuse, allow);
        let clone = self.with_argument(0, has_namespaces);
        let ioctl = self.one_of(1, &TERMINAL_INPUT, refuse, allow);
        let personality = self.one_of(0, &PERSONALITIES, allow, refuse);
        let socketpair = self.one_of(0, &[libc::AF_UNIX as u32], allow, no_family);
        let route = self.one_of(2, &[libc::NETLINK_ROUTE as u32], allow, no_family);
        let netlink = self.one_of(0, &[libc::AF_NETLINK as u32], route, no_family);
        let socket = self.one_of(0, &FAMILIES, allow, netlink);
        Targets { allow, refuse, unknown, clone, ioctl, personality, socket, socketpair }
    }

    /// Finds the rule of a number between `from` and `to` by halving the runs of equal rules.
    const fn search(&mut self, rules: &[Rule], targets: &Targets, from: usize, to: usize) -> Place {
        let runs = runs(rules, from, to);
        if runs == 1 {
            return targets.of(rules[from]);
        }
        let middle = start_of_run(rules, from, runs / 2);
        let above = self.search(rules, targets, middle, to);
        let below = self.search(rules, targets, from, middle);
        self.branch(IF_AT_LEAST, middle as u32, above, below)
    }

    /// Looks at the lower half of an argument: all that the kernel does with these.
    const fn one_of(&mut self, argument: u32, values: &[u32], yes: Place, no: Place) -> Place {
        let mut next = no;
        let mut left = values.len();
        while left > 0 {
            left -= 1;
            next = self.branch(IF_EQUAL, values[left], yes, next);
        }
        self.with_argument(argument, next)
    }

    const fn with_argument(&mut self, argument: u32, then: Place) -> Place {
        assert!(then + 1 == self.len, "what follows is run next");
        self.push(LOAD, ARGUMENTS + 8 * argument)
    }

    const fn fail(&mut self, errno: i32) -> Place {
        self.push(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
    }

    const fn branch(&mut self, condition: u16, k: u32, yes: Place, no: Place) -> Place {
        let (jt, jf) = (self.jump_to(yes), self.jump_to(no));
        self.write(sock_filter { code: condition, jt, jf, k })
    }

    const fn push(&mut self, code: u16, k: u32) -> Place {
        self.write(sock_filter { code, jt: 0, jf: 0, k })
    }

    const fn jump_to(&self, target: Place) -> u8 {
        let between = self.len - target - 1;
        assert!(between <= u8::MAX as usize, "too far for a jump");
        between as u8
    }

    const fn write(&mut self, instruction: sock_filter) -> Place {
        self.len += 1;
        self.code[INSTRUCTIONS_MAX - self.len] = instruction;
        self.len - 1
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({} instructions)", self.len)
    }
}

impl Targets {
    const fn of(&self, rule: Rule) -> Place {
        match rule {
            Rule::Allow => self.allow,
            Rule::Refuse => self.refuse,
            Rule::Unknown => self.unknown,
            Rule::Clone => self.clone,
            Rule::Ioctl => self.ioctl,
            Rule::Personality => self.personality,
            Rule::Socket => self.socket,
            Rule::SocketPair => self.socketpair,
        }
    }
}

/// How many runs of equal rules there are.
const fn runs(rules: &[Rule], from: usize, to: usize) -> usize {
    let mut runs = 1;
    let mut at = from + 1;
    while at < to {
        runs += begins_run(rules, at) as usize;
        at += 1;
    }
    runs
}

/// Where the run number `wanted` begins, the one at `from` being number 0.
const fn start_of_run(rules: &[Rule], from: usize, wanted: usize) -> usize {
    let mut seen = 0;
    let mut at = from;
    while seen < wanted {
        at += 1;
        seen += begins_run(rules, at) as usize;
    }
    at
}

const fn begins_run(rules: &[Rule], at: usize) -> bool {
    rules[at] as u8 != rules[at - 1] as u8
}
