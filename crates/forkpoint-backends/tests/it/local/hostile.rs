//! Root of a sandbox, who wants to be root of the machine.

use std::{
    collections::BTreeMap,
    env, fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    time::Duration,
};

use forkpoint_core::{
    driver::{Command, Sandbox},
    spec::{Network, SandboxSpec},
};
use futures::StreamExt as _;

use crate::layer::is_root;

use super::scene::{Scene, exec, finish, python, read_text, seal, sh, spec, write};

const CALLS: &str = include_str!("hostile/calls.py");
const LOADER: &str = include_str!("hostile/loader.c");

const INSTALL_LOADER: &str = "
    set -e
    cc -static-pie -nostdlib -fPIE -fno-stack-protector -o /tmp/loader /tmp/loader.c
    printf '#!/proc/self/exe\\n' > /tmp/script
    chmod 755 /tmp/script
    mkdir /new
    cp /tmp/loader /new/ld-linux-x86-64.so.2
    python3 -c 'import os; os.rename(\"/lib64\", \"/old\"); os.rename(\"/new\", \"/lib64\")'
";

/// What is refused with something else than `EPERM`, or is harmless.
const ANSWERS: [(&str, &[&str]); 21] = [
    ("clone3", &["ENOSYS"]),
    ("socket ", &["EPERM", "EAFNOSUPPORT", "EACCES"]),
    ("open block", &["EACCES", "ENOENT"]),
    ("mknod ", &["EPERM", "EROFS"]),
    ("write /proc/sysrq", &["EROFS", "ENOENT"]),
    ("write /proc/sys", &["EROFS"]),
    ("write /proc/irq", &["EROFS"]),
    ("write /sys", &["EROFS", "EACCES", "ENOENT", "EPERM"]),
    ("write /proc/1/", &["EACCES", "EPERM"]),
    ("follow /proc/1/", &["EACCES", "EPERM", "ENOENT"]),
    ("open /proc/1/", &["EACCES", "EPERM"]),
    ("open /proc/kmsg", &["EPERM", "EACCES"]),
    ("open /dev", &["ENOENT"]),
    ("chmod /proc/kcore", &["EROFS", "EPERM", "ENOENT"]),
    ("chmod /dev/full", &["EROFS", "EPERM"]),
    ("utime /dev/full", &["EROFS", "EPERM"]),
    ("chown /dev/full", &["EROFS", "EPERM"]),
    // Not the machine's: see below.
    ("fchmod of the standard input", &["EROFS", "EPERM", "done"]),
    ("pidfd_getfd 1", &["EPERM"]),
    ("process_vm_readv 1", &["EPERM"]),
    ("", &["EPERM"]),
];

/// The kept capabilities: `CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP
/// NET_BIND_SERVICE SYS_CHROOT SETFCAP`.
const CAPABILITIES: &str = "00000000800405fb";

/// Everything that a device's name shows.
fn faces(paths: &[&str]) -> Vec<(u32, u32, u32, i64)> {
    let face = |path: &&str| {
        let seen = fs::metadata(path).unwrap();
        (seen.mode(), seen.uid(), seen.gid(), seen.mtime())
    };
    paths.iter().map(face).collect()
}

/// Puts the machine's devices back, whatever was done to them.
struct Devices;

impl Drop for Devices {
    fn drop(&mut self) {
        for device in ["/dev/null", "/dev/full"] {
            let _ = fs::set_permissions(device, fs::Permissions::from_mode(0o666));
            let _ = std::os::unix::fs::chown(device, Some(0), Some(0));
        }
    }
}

fn everything_is_refused(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    let _devices = Devices;
    let before = faces(&["/dev/null", "/dev/full"]);
    scene.run(async {
        let sandbox = scene.create().await;
        let answers = python(&*sandbox, CALLS).await;
        let mut wrong = Vec::new();
        for line in answers.lines() {
            let (call, answer) = line.rsplit_once(' ').unwrap();
            let expected = ANSWERS.iter().find(|(start, _)| call.starts_with(start)).unwrap().1;
            if !expected.contains(&answer) {
                wrong.push(line.to_owned());
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(answers.lines().count() > 90, "{answers}");
        // Once more after its root was changed under its feet.
        seal(&*sandbox).await;
        let again = python(&*sandbox, CALLS).await;
        assert_eq!(again, answers);
    });
    assert_eq!(faces(&["/dev/null", "/dev/full"]), before);
}

#[test]
fn calls_of_the_machines_root_are_refused() {
    everything_is_refused(true);
}

#[test]
fn calls_of_the_machines_root_are_refused_without_mapped_users() {
    everything_is_refused(false);
}

async fn status_of(sandbox: &dyn Sandbox, user: &str) -> BTreeMap<String, String> {
    let mut command = Command::new(["cat", "/proc/self/status"]);
    command.user = Some(user.to_owned());
    let (text, _) = finish(sandbox.exec(&command).await.unwrap()).await;
    let fields = text.lines().filter_map(|line| line.split_once(":\t"));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn few_rights(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let status = status_of(&*sandbox, "root").await;
        for name in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(status[name], CAPABILITIES, "{name}");
        }
        for name in ["CapInh", "CapAmb"] {
            assert_eq!(status[name], "0000000000000000", "{name}");
        }
        assert_eq!((&*status["NoNewPrivs"], &*status["Seccomp"]), ("1", "2"));
        // A program that makes its user root makes nobody root.
        let script = "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && /tmp/id -u";
        assert_eq!(sh(&*sandbox, script).await, "0\n");
        if !is_root() {
            return; // There is nobody else inside.
        }
        let status = status_of(&*sandbox, "nobody").await;
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status[name], "0000000000000000", "{name} of nobody");
        }
        let mut command = Command::new(["/tmp/id", "-u"]);
        command.user = Some("nobody".to_owned());
        let (id, _) = finish(sandbox.exec(&command).await.unwrap()).await;
        assert_eq!(id, "65534\n");
    });
}

#[test]
fn commands_have_few_rights() {
    few_rights(true);
}

#[test]
fn commands_have_few_rights_without_mapped_users() {
    few_rights(false);
}

fn alone(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let out = sh(&*sandbox, "kill -9 1; kill -STOP 1; kill -TERM 1; echo alive");
        let out = out.await;
        assert!(out.ends_with("alive\n"), "{out}");
        assert_eq!(sh(&*sandbox, "echo again").await, "again\n");

        // The shell, `ls` and init.
        let numbers = sh(&*sandbox, "ls /proc | grep -c '^[0-9]'").await;
        assert!(numbers.trim().parse::<u32>().unwrap() <= 4, "{numbers}");
        let secret = scene.root().to_str().unwrap().to_owned();
        seal(&*sandbox).await;
        let script = "cat /proc/mounts /proc/self/mountinfo /proc/1/mountinfo /proc/self/cgroup \
                      /proc/1/cgroup /proc/1/cmdline /proc/swaps /proc/self/environ";
        let (seen, _) = exec(&*sandbox, &["sh", "-c", script]).await;
        let hosts = [&*secret, "/tmp", "forkpoint/"];
        for line in seen.lines() {
            let told = hosts.iter().find(|host| line.contains(**host));
            assert!(told.is_none(), "{line}");
        }
        let interfaces = sh(&*sandbox, "ls /sys/class/net; tail -n +3 /proc/net/dev").await;
        assert!(interfaces.starts_with("lo\n"), "{interfaces}");
        assert_eq!(interfaces.lines().count(), 2, "{interfaces}");
    });
}

#[test]
fn nobody_else_is_seen() {
    alone(true);
}

#[test]
fn nobody_else_is_seen_without_mapped_users() {
    alone(false);
}

/// A file of the host that goes when the test is over.
struct Planted(&'static str);

impl Planted {
    fn new(path: &'static str) -> Self {
        fs::write(path, "secret").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        Self(path)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

#[test]
fn the_host_as_a_template_shows_nothing_that_is_its_own() {
    let why = "nobody else can put files there";
    let Some(scene) = Scene::by_root(true, why) else { return };
    scene.run(async {
        let before = scene.create().await;
        let _root = Planted::new("/forkpoint-test-secret");
        let _etc = Planted::new("/etc/forkpoint-test-secret");
        let _home = Planted::new("/root/forkpoint-test-secret");
        let _var = Planted::new("/var/forkpoint-test-secret");
        let after = scene.create().await;
        for sandbox in [before, after] {
            let found = sh(&*sandbox, "find / -xdev -name 'forkpoint-test-secret*' 2>&1").await;
            assert_eq!(found, "");
            let script = "cat /etc/shadow /etc/gshadow /etc/ssh/* /root/.ssh/* /etc/sudoers 2>/dev/null; \
                          ls -A /root /home /var/log /var/lib /srv /mnt /run /etc/ssl/private 2>/dev/null \
                          | grep -v -e : -e '^$'; true";
            assert_eq!(sh(&*sandbox, script).await, "");
            let names = sh(&*sandbox, "cat /etc/passwd /etc/hosts; hostname").await;
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
            // As a word: an id may have any letters in it.
            let mut words = names.split(|letter: char| !letter.is_alphanumeric() && letter != '-');
            assert!(!words.any(|word| word == host.trim()), "{names}");
        }
    });
}

#[test]
fn the_drivers_environment_stays_outside() {
    environment(true);
}

#[test]
fn the_drivers_environment_stays_outside_without_mapped_users() {
    environment(false);
}

fn environment(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    // Nextest and cargo set plenty.
    let ours: Vec<_> = env::vars().filter(|(name, _)| name.starts_with("CARGO")).collect();
    assert!(!ours.is_empty());
    scene.run(async {
        let sandbox = scene.create().await;
        let inside = sh(&*sandbox, "cat /proc/*/environ | tr '\\0' '\\n'").await;
        assert!(!inside.contains("CARGO"), "{inside}");
        // Whose it is, the host's root sees, and nobody inside.
        let root = scene.root().to_str().unwrap().to_owned();
        let outside = fs::read(format!("/proc/{}/environ", scene.init(sandbox.id())));
        match is_root() {
            true => {
                let told = String::from_utf8(outside.unwrap()).unwrap();
                assert_eq!(told, format!("FORKPOINT_ROOT={root}\0"));
            }
            false => assert!(outside.is_err(), "{outside:?}"),
        }
        assert!(!inside.contains("FORKPOINT_ROOT"), "{inside}");
        assert!(inside.contains("PATH="), "{inside}");
    });
}

const CONNECT: &str = "
import socket, sys
for host in sys.argv[1:]:
    try:
        print(socket.create_connection((host, PORT), 2).recv(5).decode())
    except OSError as err:
        print(type(err).__name__)
";

#[test]
fn only_a_sandbox_with_the_hosts_network_reaches_the_host() {
    let Some(scene) = Scene::new(true) else { return };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"hello");
        }
    });
    let script = CONNECT.replace("PORT", &port.to_string());
    scene.run(async {
        let sandbox = scene.create().await;
        let argv = ["python3", "-c", &script, "127.0.0.1", "127.1.2.3", "192.0.2.1"];
        let (out, _) = exec(&*sandbox, &argv).await;
        assert_eq!(out, "ConnectionRefusedError\nConnectionRefusedError\nOSError\n");
        // Its own loopback works.
        let own = "import socket; s = socket.create_server(('127.0.0.1', 0)); \
                   socket.create_connection(s.getsockname()); print('up')";
        assert_eq!(python(&*sandbox, own).await, "up\n");

        let spec = SandboxSpec { network: Network::Host, ..spec() };
        let sandbox = scene.create_as(&spec).await;
        let (out, _) = exec(&*sandbox, &argv[..4]).await;
        assert_eq!(out, "hello\n");
        // And still nothing but the network is the host's.
        let answers = python(&*sandbox, CALLS).await;
        assert!(answers.contains("unshare net EPERM\n"), "{answers}");
        assert!(answers.contains("write /proc/sys/net/ipv4/ip_forward EROFS\n"), "{answers}");
        assert!(answers.contains("socket packet EAFNOSUPPORT\n"), "{answers}");
        assert!(answers.contains("socket vsock EAFNOSUPPORT\n"), "{answers}");
    });
}

const CHROOT: &str = "
import os
os.makedirs('/tmp/jail', exist_ok=True)
out = os.open('/', os.O_RDONLY)
os.chroot('/tmp/jail')
os.fchdir(out)
for _ in range(100):
    os.chdir('..')
os.chroot('.')
print(os.path.exists('/forkpoint-test-inside'), os.path.exists('/etc/shadow'), len(os.listdir('/home')))
";

fn chroot(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, "touch /forkpoint-test-inside").await;
        assert_eq!(python(&*sandbox, CHROOT).await, "True False 0\n");
        seal(&*sandbox).await;
        assert_eq!(python(&*sandbox, CHROOT).await, "True False 0\n");
    });
}

#[test]
fn a_way_out_of_a_chroot_ends_inside() {
    chroot(true);
}

#[test]
fn a_way_out_of_a_chroot_ends_inside_without_mapped_users() {
    chroot(false);
}

/// Puts our program back, whatever was done to it.
struct Program(std::path::PathBuf, fs::Metadata);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, self.1.permissions());
    }
}

/// A script whose interpreter is whatever runs it: init's own program, which is a file of the host.
/// Its loader comes from the sandbox, so that what runs then is what the sandbox wants.
fn own_program(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    let path = super::helper();
    let before = Program(path.clone(), fs::metadata(&path).unwrap());
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/tmp/loader.c", LOADER).await.unwrap();
        sh(&*sandbox, INSTALL_LOADER).await;
        let running = sandbox.exec(&Command::new(["/tmp/script"])).await.unwrap();
        assert_eq!(finish(running).await.0, "ran refused refused\n");
    });
    assert_eq!(fs::metadata(&path).unwrap().mode(), before.1.mode());
}

#[test]
fn our_own_program_is_out_of_reach() {
    own_program(true);
}

#[test]
fn our_own_program_is_out_of_reach_without_mapped_users() {
    own_program(false);
}

/// Stops everybody but itself, again and again, for a while.
const STORM: &str = "
import os, signal, time
print('storm', flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        pass
";

#[test]
fn a_command_that_stands_still_before_it_starts_holds_nobody_up() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let mut storm = sandbox.exec(&Command::new(["python3", "-c", STORM])).await.unwrap();
        storm.stdout.next().await;
        let tries = (0..20).map(|_| async {
            let patience = Duration::from_secs(1);
            let _ = tokio::time::timeout(patience, sandbox.exec(&Command::new(["true"]))).await;
        });
        futures::future::join_all(tries).await;
        storm.control.wait().await.unwrap();
        assert_eq!(sh(&*sandbox, "echo calm").await, "calm\n");
        assert_eq!(read_text(&*sandbox, "/etc/hosts").await.lines().count(), 2);
    });
}
