//! A Docker engine for tests, in a network and a mount namespace of its own.
//!
//! One engine is shared by all test processes that use it at the same time. Each holds a lock while it
//! lives, however it dies; somebody who watches the lock ends the engine, and everything in it, when
//! nobody has held it for some seconds. A test that kills or fills its engine gets one of its own.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

mod podman;
mod proxy;

pub use podman::Podman;
pub use proxy::{Cut, Proxy};

/// Where an engine listens for TLS, in its own network.
const TLS_PORT: u16 = 2376;

/// What containers of tests are made from: a shell and what the suites call.
pub const IMAGE: &str = "forkpoint-test:1";

const COMMANDS: [&str; 40] = [
    "sh", "cat", "chmod", "chown", "cksum", "cp", "dd", "echo", "env", "false", "find", "getfattr",
    "grep", "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mv", "printenv",
    "printf", "pwd", "rm", "rmdir", "sed", "seq", "setfattr", "sleep", "sort", "stat", "stty",
    "tail", "test", "touch", "true", "truncate", "wc",
];
const MORE: [&str; 2] = ["xargs", "mknod"];

/// Ends an engine that nobody uses. `$1` is its directory, `$2` its process.
const WATCH: &str = r#"
cd "$1" || exit
idle=0
while [ "$idle" -lt 3 ]; do
    sleep 1
    kill -0 "$2" 2>/dev/null || break
    exec 8>>gate; flock 8
    exec 9>>users
    if flock -n -x 9; then idle=$((idle + 1)); else idle=0; fi
    exec 9>&-
    [ "$idle" -lt 3 ] && exec 8>&-
done
exec 8>>gate; flock 8
export DOCKER_HOST="unix://$1/docker.sock"
for id in $(timeout 20 docker ps -aq); do timeout 20 docker rm -f "$id"; done
kill "$2"
while kill -0 "$2" 2>/dev/null; do sleep 0.1; done
rm -rf data exec docker.sock pid root tmp
"#;

/// Starts a daemon in namespaces of its own, with the options in the third argument; with a second
/// one, again and again until there is a file `stop`, and with processes that end when it does.
const SERVE: &str = r#"
cd "$1" || exit
mkdir -p tmp
export TMPDIR="$1/tmp" # it leaves things there
ip link set lo up
serve() { dockerd --data-root "$1/data" --exec-root "$1/exec" -p "$1/pid" \
    -H "unix://$1/docker.sock" --experimental $3; }
if [ -z "$2" ]; then exec dockerd --data-root "$1/data" --exec-root "$1/exec" -p "$1/pid" \
    -H "unix://$1/docker.sock" --experimental; fi
while [ ! -e stop ]; do rm -f pid docker.sock; serve "$1" "$2" "$3"; sleep 0.1; done
"#;

/// An engine, as long as this lives.
#[derive(Debug)]
pub struct DockerEngine {
    directory: PathBuf,
    /// Held by whoever uses a shared one.
    _users: Option<File>,
    own: Option<Child>,
}

impl DockerEngine {
    /// The one that is shared, below a directory that all test processes know.
    ///
    /// # Panics
    ///
    /// When there is no `dockerd`, or it does not start.
    #[must_use]
    pub fn shared(target: &Path) -> Self {
        let directory = target.join("docker");
        fs::create_dir_all(&directory).expect("a directory");
        let gate = open(&directory.join("gate"));
        gate.lock().expect("a lock");
        let users = open(&directory.join("users"));
        users.lock_shared().expect("a lock");
        let engine = Self { directory, _users: Some(users), own: None };
        if !engine.answers() {
            engine.start_shared();
        }
        engine
    }

    #[expect(
        clippy::zombie_processes,
        reason = "both outlive this process, and nobody waits for them"
    )]
    fn start_shared(&self) {
        for left in ["data", "exec", "root", "tmp"] {
            let _ = fs::remove_dir_all(self.directory.join(left));
        }
        let _ = fs::remove_file(self.directory.join("docker.sock"));
        let mut serve = self.serve(&["--net", "--mount", "--propagation", "private"], "");
        let daemon = serve.spawn().expect("`unshare` starts");
        let mut watch = Command::new("sh");
        watch.args(["-c", WATCH, "watch"]).arg(&self.directory).arg(daemon.id().to_string());
        quiet(&mut watch, &self.directory.join("watch.log"));
        watch.env("PATH", path_of_root()).spawn().expect("`sh` starts");
        self.await_answer();
        self.import();
    }

    /// One of its own: its daemon can be killed and comes back.
    ///
    /// # Panics
    ///
    /// When there is no `dockerd`, or it does not start.
    #[must_use]
    pub fn own(directory: &Path) -> Self {
        Self::own_with(directory, "")
    }

    /// One of its own that listens for TLS too, at [`DockerEngine::tls_port`], and wants to know who asks.
    /// In `certificates` are `ca.pem`, `server.pem` and `server-key.pem`.
    ///
    /// # Panics
    ///
    /// When there is no `dockerd`, or it does not start.
    #[must_use]
    pub fn own_with_tls(directory: &Path, certificates: &Path) -> Self {
        let at = certificates.display();
        let options = format!(
            "-H tcp://127.0.0.1:{TLS_PORT} --tlsverify --tlscacert {at}/ca.pem \
             --tlscert {at}/server.pem --tlskey {at}/server-key.pem"
        );
        Self::own_with(directory, &options)
    }

    fn own_with(directory: &Path, options: &str) -> Self {
        let mut engine = Self { directory: directory.to_owned(), _users: None, own: None };
        let namespaces = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ];
        let mut serve = engine.serve(&namespaces, "again");
        serve.arg(options);
        engine.own = Some(serve.spawn().expect("`unshare` starts"));
        engine.await_answer();
        engine.import();
        engine
    }

    fn serve(&self, namespaces: &[&str], again: &str) -> Command {
        let mut serve = Command::new("unshare");
        serve.args(namespaces).args(["sh", "-c", SERVE, "serve"]).arg(&self.directory).arg(again);
        quiet(&mut serve, &self.directory.join("log"));
        serve.env("PATH", path_of_root());
        serve
    }

    /// A port of this machine that leads to the engine's own, which is in another network. As long as
    /// this process lives.
    ///
    /// # Panics
    ///
    /// When there is no daemon.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let namespace = format!("/proc/{}/ns/net", self.daemon().expect("a daemon"));
        let namespace = File::open(namespace).expect("a network");
        thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).expect("root may");
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", TLS_PORT)) {
                    join(&client, &server);
                }
            }
        });
        port
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("docker.sock")
    }

    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Where the daemon keeps images and containers.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Runs a script that sees the mounts that the daemon sees.
    ///
    /// # Panics
    ///
    /// When there is no daemon, or it fails.
    pub fn inside(&self, script: &str) {
        let daemon = self.daemon().expect("a daemon");
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &daemon, "--mount", "sh", "-c", script]).stdin(Stdio::null());
        assert!(enter.status().is_ok_and(|status| status.success()), "{script}");
    }

    /// The docker command.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.arg("-H").arg(self.host()).stdin(Stdio::null());
        docker
    }

    /// What the docker command prints.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn docker<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> String {
        let mut command = self.command();
        let output = command.args(args).output().expect("`docker` starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Whether it answers.
    #[must_use]
    pub fn answers(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        ask().is_ok_and(|text| text.contains(" 200 "))
    }

    /// Kills the daemon and nothing else; its containers may live on. For one of its own, which comes
    /// back.
    ///
    /// # Panics
    ///
    /// When there is no daemon.
    pub fn kill(&self) {
        self.killer()();
    }

    /// What kills the daemon that there is now, for whoever has no engine at hand.
    ///
    /// # Panics
    ///
    /// When there is no daemon.
    pub fn killer(&self) -> impl Fn() + Send + Sync + use<> {
        let pid = self.daemon().expect("a daemon");
        move || {
            let killed = Command::new("kill").args(["-KILL", &pid]).status();
            assert!(killed.is_ok_and(|status| status.success()), "the daemon is gone already");
        }
    }

    /// The daemon, as this process sees it: its own number is another one where it lives.
    fn daemon(&self) -> Option<String> {
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let socket = self.host();
        let is_it = |path: &Path| {
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|word| word.ends_with(b"dockerd"))
                && words.any(|word| word == socket.as_bytes())
        };
        let found = processes.map(|entry| entry.path()).find(|path| is_it(path))?;
        Some(found.file_name()?.to_str()?.to_owned())
    }

    /// # Panics
    ///
    /// When it does not within a minute.
    #[expect(clippy::disallowed_methods, reason = "it answers in its own time")]
    pub fn await_answer(&self) {
        for _ in 0..1200 {
            if self.answers() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        panic!("`dockerd` (package docker.io) does not answer: {log}");
    }

    fn import(&self) {
        let root = self.directory.join("root");
        make_root(&root);
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&root).args(["-c", "."]).stdout(Stdio::piped());
        let mut tar = tar.spawn().expect("`tar` starts");
        let mut import = self.command();
        import.args(["import", "-", IMAGE]).stdin(tar.stdout.take().expect("a pipe"));
        let output = import.output().expect("`docker` starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tar.wait().is_ok_and(|status| status.success()), "`tar` fails");
        let _ = fs::remove_dir_all(root);
    }
}

impl Drop for DockerEngine {
    fn drop(&mut self) {
        let Some(mut own) = self.own.take() else { return };
        let _ = fs::write(self.directory.join("stop"), "");
        // Everything in its process namespace goes with it.
        let _ = own.kill();
        let _ = own.wait();
    }
}

/// Carries bytes between two, in both directions.
fn join(client: &TcpStream, server: &TcpStream) {
    for (from, to) in [(client, server), (server, client)] {
        let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

fn open(path: &Path) -> File {
    File::options().append(true).create(true).open(path).expect("a lock file")
}

/// On its own, whatever becomes of the test.
fn quiet(command: &mut Command, log: &Path) {
    let log = File::create(log).expect("a log");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
    command.process_group(0);
}

/// With what the project installs for its tests, such as `criu`, whoever runs them.
fn path_of_root() -> String {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin");
    format!("{tools}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// A small system from programs of this machine, with their libraries.
fn make_root(root: &Path) {
    let _ = fs::remove_dir_all(root);
    for directory in ["bin", "etc", "tmp", "root", "proc", "sys", "dev", "srv"] {
        fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("a file");
    fs::write(root.join("etc/group"), "root:x:0:\n").expect("a file");
    let mut libraries = std::collections::BTreeSet::new();
    for command in COMMANDS.iter().chain(&MORE) {
        let Some(program) = find(command) else { continue };
        fs::copy(&program, root.join("bin").join(command)).expect("a copy");
        let listed = Command::new("ldd").arg(&program).output().expect("`ldd` starts");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
        libraries.extend(words.map(PathBuf::from));
    }
    for library in libraries {
        let inner = library.strip_prefix("/").expect("an absolute path");
        let to = root.join(inner);
        fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        fs::copy(&library, &to).expect("a copy");
    }
}

fn find(command: &str) -> Option<PathBuf> {
    let path = path_of_root();
    let places = path.split(':').map(|directory| Path::new(directory).join(command));
    places.filter(|place| place.is_file()).find_map(|place| place.canonicalize().ok())
}
