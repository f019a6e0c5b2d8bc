//! What this machine can do, found out by trying.

use std::{fs, path::Path};

use forkpoint_core::{id::SandboxId, spec::SandboxSpec};
use rustix::{fs::ioctl_ficlone, system::uname};

use super::{
    Check, LocalConfig, Verdict, WARM_MAX,
    cgroup::{Cgroups, Version},
    host::Host,
    mount::MAP_OWNERS,
};

/// Layers are given to overlayfs one by one since then.
const OLDEST: (u32, u32) = (6, 8);

pub(super) fn examine(config: &LocalConfig) -> Vec<Check> {
    let mut checks = vec![kernel(), sandbox(config), users(config)];
    checks.extend(cgroups());
    checks.push(reflink(&config.root));
    checks.extend((config.warm > 0).then(|| warm(config.warm)));
    checks
}

/// Told of where it was asked for.
fn warm(count: usize) -> Check {
    let name = "kept ready";
    match rustix::process::geteuid().is_root() {
        true => {
            let detail = format!("{} sandboxes, in a process that stays", count.min(WARM_MAX));
            check(name, Verdict::Yes, detail)
        }
        false => check(name, Verdict::Limited, "no sandbox: it takes root").or("run as root"),
    }
}

fn check(name: &'static str, verdict: Verdict, detail: impl Into<String>) -> Check {
    Check { name, verdict, detail: detail.into(), way_out: None }
}

impl Check {
    fn or(self, way_out: impl Into<String>) -> Self {
        Self { way_out: Some(way_out.into()), ..self }
    }
}

fn kernel() -> Check {
    let release = uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let detail = format!("Linux {release}");
    match version >= OLDEST {
        true => check("kernel", Verdict::Yes, detail),
        false => check("kernel", Verdict::No, detail)
            .or(format!("Linux {}.{} or later is needed", OLDEST.0, OLDEST.1)),
    }
}

/// Makes one, in a directory of its own, and takes it away.
fn sandbox(config: &LocalConfig) -> Check {
    let made = try_sandbox(config);
    match made {
        Ok(()) => check("sandboxes", Verdict::Yes, "one was made and taken away again"),
        Err(reason) => {
            let way_out = way_out_of_failure(&reason);
            check("sandboxes", Verdict::No, reason).or(way_out)
        }
    }
}

fn way_out_of_failure(reason: &str) -> &'static str {
    match rustix::process::geteuid().is_root() {
        true if reason.contains(MAP_OWNERS) => {
            "put the data directory on a file system that can (ext4, XFS, btrfs, tmpfs); or run \
             without root, where owners are not mapped"
        }
        true => "inside a container, it must be a privileged one",
        false => {
            "without root, user namespaces must be allowed: see `sysctl user.max_user_namespaces` \
             and, where there is one, `kernel.apparmor_restrict_unprivileged_userns`; or run as root"
        }
    }
}

fn try_sandbox(config: &LocalConfig) -> Result<(), String> {
    let root = config.root.join(crate::layer::unique_name("examine"));
    let made = fs::create_dir_all(&root).map_err(|err| err.to_string()).and_then(|()| {
        let config = LocalConfig { root: root.clone(), warm: 0, ..config.clone() };
        try_in(config).map_err(|err| forkpoint_core::error::Chain(&err).to_string())
    });
    let _ = fs::remove_dir_all(&root);
    made
}

fn try_in(config: LocalConfig) -> forkpoint_core::driver::DriverResult<()> {
    let host = Host::open(config)?;
    let spec = SandboxSpec::new("host".parse().map_err(super::failed("name a template"))?);
    let id = SandboxId::from_u128(u128::from(std::process::id()));
    let made = host.create(id, &spec, None).and_then(|()| host.ask_init(&host.record(id)?));
    host.destroy(id)?;
    let _ = host.store.reap();
    made.map(drop)
}

fn users(config: &LocalConfig) -> Check {
    let name = "users";
    match (rustix::process::geteuid().is_root(), config.map_users) {
        (true, true) => check(name, Verdict::Yes, "users of a sandbox are nobody outside"),
        (true, false) => {
            check(name, Verdict::Limited, "root inside is root outside, with few rights")
        }
        (false, _) => check(name, Verdict::Limited, "a sandbox has one user, its root: you")
            .or("run as root for sandboxes with several users (`chown`, `su`, packages)"),
    }
}

fn cgroups() -> Vec<Check> {
    let found = Cgroups::find().describe();
    let way_out = match rustix::process::geteuid().is_root() {
        true => {
            "mount cgroup2, or give this process a cgroup that it may change, with nobody else in it"
        }
        false => {
            "run as root, or with a cgroup of its own and nobody else in it \
             (`systemd-run --user --scope -p Delegate=yes forkpoint …`)"
        }
    };
    let limit = |name, found: Result<Version, String>| match found {
        Ok(Version::V1) => check(name, Verdict::Yes, "by cgroups of version 1"),
        Ok(Version::V2) => check(name, Verdict::Yes, "by cgroup2"),
        Err(reason) => check(name, Verdict::Limited, reason).or(way_out),
    };
    let can_freeze = found.freeze.is_ok() && rustix::process::geteuid().is_root();
    let freezer = match can_freeze {
        true => check("freezer", Verdict::Yes, "by cgroup2"),
        false => check(
            "freezer",
            Verdict::Limited,
            "processes are paused by signals, which they can see",
        )
        .or("run as root, on a machine with cgroup2"),
    };
    vec![
        freezer,
        limit("limit of memory", found.memory),
        limit("limit of processors", found.cpu),
        limit("limit of processes", found.pids),
    ]
}

fn reflink(root: &Path) -> Check {
    let names = ["a", "b"].map(|name| root.join(crate::layer::unique_name(name)));
    let copied = fs::create_dir_all(root).and_then(|()| {
        fs::write(&names[0], [1; 4096])?;
        let (from, to) = (fs::File::open(&names[0])?, fs::File::create(&names[1])?);
        Ok(ioctl_ficlone(&to, &from)?)
    });
    for name in &names {
        let _ = fs::remove_file(name);
    }
    match copied {
        Ok(()) => check("reflinks", Verdict::Yes, "large files are captured without copying them"),
        Err(err) => {
            let detail = format!("a snapshot of a busy sandbox copies what changed ({err})");
            check("reflinks", Verdict::Limited, detail).or("put the data directory on XFS or btrfs")
        }
    }
}
