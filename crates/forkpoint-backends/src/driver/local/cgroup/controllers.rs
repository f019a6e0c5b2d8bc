//! Controllers of cgroup2 on their way down to a sandbox.
//!
//! A cgroup that hands controllers down must have no process of its own, but for the first of all. Who is not the
//! machine's root has at most the cgroup that they are in, so they have to step aside first, into one below it. They
//! do so when a limit is asked for, and only where nobody else would have to move: whoever is in there beside us and our
//! children has their own reasons.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::directory::{SHARED, write};

/// Where we are when we stepped aside, below what is ours.
pub(super) const ASIDE: &str = "aside";

/// How often our children may make others meanwhile.
const ATTEMPTS: usize = 100;

/// Whether it is worth being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeal {
    StayWhereWeAre,
    StepAside,
}

/// Hands them down from `base` to what is in its shared directory, and tells of those that stay where they are.
pub(super) fn hand_down(
    wanted: &[&'static str],
    base: &Path,
    zeal: Zeal,
) -> Vec<(&'static str, io::Error)> {
    let shared = base.join(SHARED);
    let mut failures = enable(wanted, base);
    if failures.iter().any(|(_, err)| is_busy(err)) && zeal == Zeal::StepAside {
        failures = match step_aside(base, &shared) {
            Ok(()) => enable(wanted, base),
            Err(err) => wanted.iter().map(|name| (*name, clone_of(&err))).collect(),
        };
    }
    failures.extend(enable(wanted, &shared));
    failures
}

fn enable(wanted: &[&'static str], directory: &Path) -> Vec<(&'static str, io::Error)> {
    let control = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    let missing = wanted.iter().filter(|wanted| !contains(&enabled, wanted));
    let failed = |name: &&'static str| Some((*name, write(&control, &format!("+{name}")).err()?));
    missing.filter_map(failed).collect()
}

pub(super) fn contains(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

/// The cgroup that was ours before we stepped aside, if we did.
pub(super) fn before_stepping_aside(own: &Path) -> PathBuf {
    let before = without(own, ASIDE).and_then(|own| without(own, SHARED));
    before.unwrap_or(own).to_owned()
}

fn without<'a>(path: &'a Path, last: &str) -> Option<&'a Path> {
    path.parent().filter(|_| path.file_name().is_some_and(|name| name == last))
}

fn step_aside(base: &Path, shared: &Path) -> io::Result<()> {
    let aside = shared.join(ASIDE);
    match fs::create_dir(&aside) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
        _ => {}
    }
    for _ in 0..ATTEMPTS {
        let there = fs::read_to_string(base.join("cgroup.procs"))?;
        let there: Vec<u32> = there.lines().filter_map(|line| line.parse().ok()).collect();
        if there.is_empty() {
            return Ok(());
        }
        if !there.iter().all(|pid| is_ours(*pid)) {
            let _ = fs::remove_dir(&aside);
            let told = format!("others are in `{}` itself, besides us", base.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, told));
        }
        for pid in there {
            match write(&aside.join("cgroup.procs"), &pid.to_string()) {
                // It has ended meanwhile.
                Err(err) if Errno::from_io_error(&err) == Some(Errno::SRCH) => {}
                result => result?,
            }
        }
    }
    Err(Errno::BUSY.into())
}

/// This process, or one that hangs below it. One that is gone is in nobody's way.
fn is_ours(pid: u32) -> bool {
    let own = std::process::id();
    let mut next = Some(pid);
    while let Some(pid) = next {
        if pid == own {
            return true;
        }
        match parent(pid) {
            Ok(parent) => next = parent,
            Err(_) => return true,
        }
    }
    false
}

fn parent(pid: u32) -> io::Result<Option<u32>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
    Ok(parent.filter(|parent| *parent != 0))
}

fn is_busy(err: &io::Error) -> bool {
    Errno::from_io_error(err) == Some(Errno::BUSY)
}

fn clone_of(err: &io::Error) -> io::Error {
    io::Error::new(err.kind(), err.to_string())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use rustix::{
        fs::{FlockOperation, flock},
        process::{Pid, Signal, kill_process},
    };

    use super::*;

    /// A part of the machine's cgroup2 with a controller to hand down, and what is in it. All of it goes at the end.
    struct Part {
        base: PathBuf,
        controller: &'static str,
        was_handed_down: bool,
        children: Vec<Child>,
        /// One at a time: what is above all parts is switched on and off.
        _lock: fs::File,
    }

    impl Part {
        /// `None` where there is nothing to hand down.
        fn new(name: &str) -> Option<Self> {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let own = fs::read_to_string("/proc/self/cgroup").unwrap();
            let mount = super::super::Hierarchies::parse(&mounts, &own).unified?.mount;
            let known = fs::read_to_string(mount.join("cgroup.controllers")).unwrap();
            let controller =
                ["hugetlb", "pids", "memory"].into_iter().find(|name| contains(&known, name))?;
            let lock = fs::File::open(mount.join("cgroup.procs")).unwrap();
            flock(&lock, FlockOperation::LockExclusive).unwrap();
            let control = fs::read_to_string(mount.join("cgroup.subtree_control")).unwrap();
            let was_handed_down = contains(&control, controller);
            let base = mount.join(format!("forkpoint-test-{name}-{}", std::process::id()));
            if !enable(&[controller], &mount).is_empty() || fs::create_dir(&base).is_err() {
                eprintln!("this machine's cgroups cannot be changed");
                return None;
            }
            fs::create_dir(base.join(SHARED)).unwrap();
            Some(Self { base, controller, was_handed_down, children: Vec::new(), _lock: lock })
        }

        fn move_in(&self, pid: u32) {
            write(&self.base.join("cgroup.procs"), &pid.to_string()).unwrap();
        }

        fn child(&mut self) -> u32 {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let pid = child.id();
            self.children.push(child);
            self.move_in(pid);
            pid
        }

        fn hand_down(&self, zeal: Zeal) -> Option<String> {
            let failures = hand_down(&[self.controller], &self.base, zeal);
            failures.first().map(|(_, err)| err.to_string())
        }

        fn is_handed_down(&self) -> bool {
            [self.base.clone(), self.base.join(SHARED)].iter().all(|directory| {
                let control = directory.join("cgroup.subtree_control");
                contains(&fs::read_to_string(control).unwrap(), self.controller)
            })
        }
    }

    impl Drop for Part {
        fn drop(&mut self) {
            for child in &mut self.children {
                let _ = child.kill();
                let _ = child.wait();
            }
            let shared = self.base.join(SHARED);
            for directory in [shared.join(ASIDE), shared, self.base.clone()] {
                let deadline =
                    super::super::directory::Deadline::after(std::time::Duration::from_secs(10));
                super::super::directory::remove(&directory, deadline).unwrap();
            }
            if !self.was_handed_down {
                // Not while another test needs it.
                let control = self.base.with_file_name("cgroup.subtree_control");
                let _ = write(&control, &format!("-{}", self.controller));
            }
        }
    }

    #[test]
    fn who_is_in_the_way_steps_aside() {
        let Some(mut part) = Part::new("aside") else { return };
        let pid = part.child();
        assert!(part.hand_down(Zeal::StayWhereWeAre).is_some_and(|told| told.contains("busy")));
        assert!(!part.is_handed_down());
        assert_eq!(part.hand_down(Zeal::StepAside), None);
        assert!(part.is_handed_down());
        let aside = part.base.join(SHARED).join(ASIDE);
        assert_eq!(fs::read_to_string(aside.join("cgroup.procs")).unwrap(), format!("{pid}\n"));
        assert_eq!(before_stepping_aside(&aside), part.base);
        assert_eq!(before_stepping_aside(&part.base), part.base);
    }

    #[test]
    fn others_are_left_where_they_are() {
        let Some(mut part) = Part::new("others") else { return };
        let script = "sleep 1000 >/dev/null & echo $!";
        let orphan =
            Command::new("sh").args(["-c", script]).stderr(Stdio::null()).output().unwrap();
        let orphan: u32 = String::from_utf8(orphan.stdout).unwrap().trim().parse().unwrap();
        part.move_in(orphan);
        part.child();
        let told = part.hand_down(Zeal::StepAside).unwrap();
        let there = fs::read_to_string(part.base.join("cgroup.procs")).unwrap();
        let _ = kill_process(Pid::from_raw(orphan.cast_signed()).unwrap(), Signal::KILL);
        assert!(told.contains("others are in"), "{told}");
        assert_eq!(there.lines().count(), 2, "{there}");
    }
}
