//! What goes wrong with engines, and how it is told.

use std::{io::Write as _, os::unix::net::UnixListener, process::Command, thread};

use forkpoint_core::driver::{Driver as _, DriverError, SandboxState, SnapshotKind};

use super::{
    IMAGE, Machine, runtime,
    scene::{Scene, new_id, path, shell, told, try_seal, write},
    spec, unique,
};
use forkpoint_core::id::SnapshotId;

#[test]
fn without_an_engine_every_call_says_so() {
    runtime().block_on(async {
        let directory = tempfile::TempDir::new().unwrap();
        let socket = directory.path().join("docker.sock");
        let endpoint = forkpoint_backends::driver::docker::Endpoint::Unix(socket.clone());
        let config = forkpoint_backends::driver::docker::DockerConfig::new(
            endpoint,
            directory.path().join("d"),
        );
        let driver = forkpoint_backends::driver::docker::DockerDriver::open(config).unwrap();
        assert!(!directory.path().join("d").exists(), "opening it costs nothing");
        let id = new_id();
        let errors = [
            driver.status(id).await.map(drop),
            driver.create(id, &spec()).await.map(drop),
            driver.destroy(id).await,
            driver.settle(id).await,
            driver.list().await.map(drop),
            driver.adopt("web").await.map(drop),
            driver.unseal(SnapshotId::from_u128(unique())).await,
        ];
        for err in errors {
            let err = err.unwrap_err();
            assert!(matches!(err, DriverError::Unreachable { .. }), "{err:?}");
            let text = told(&err);
            assert!(
                text.contains(socket.to_str().unwrap()) && text.contains("DOCKER_HOST"),
                "{text}"
            );
        }
    });
}

/// Somebody who answers every request the same.
fn answering(
    machine: &Machine,
    answer: &'static str,
) -> forkpoint_backends::driver::docker::DockerDriver {
    let socket = machine.directory.path().join(format!("{:x}.sock", unique()));
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut byte = [0];
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n")
                && std::io::Read::read(&mut client, &mut byte).unwrap_or(0) == 1
            {
                head.push(byte[0]);
            }
            let text =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
            let _ = client.write_all(text.as_bytes());
        }
    });
    machine.docker_through(&socket)
}

#[test]
fn an_engine_that_is_too_old_or_none_at_all_is_told() {
    runtime().block_on(async {
        let machine = Machine::new();
        for (answer, says) in [
            ("{\"ApiVersion\":\"1.24\"}", "1.24"),
            ("{}", "update the engine"),
            ("<html>", "broke"),
        ] {
            let err = answering(&machine, answer).list().await.unwrap_err();
            assert!(matches!(err, DriverError::Unreachable { .. }), "{err:?}");
            assert!(told(&err).contains(says), "{}", told(&err));
        }
    });
}

#[test]
fn who_may_not_use_the_socket_is_told_of_the_group() {
    use std::os::unix::fs::PermissionsExt as _;
    let machine = Machine::new();
    let socket = machine.directory.path().join("closed.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(machine.directory.path(), std::fs::Permissions::from_mode(0o711))
        .unwrap();
    // Root may everything: somebody else asks.
    let program = machine.directory.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let asked = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(program)
        .args(["--exact", "docker::faults::helper_that_asks", "--nocapture"])
        .env("FORKPOINT_TEST_SOCKET", &socket)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&asked.stdout).into_owned()
        + &String::from_utf8_lossy(&asked.stderr);
    assert!(text.contains("group `docker`"), "{text}");
}

/// For the test above, in a process of its own; by itself it does nothing.
#[test]
fn helper_that_asks() {
    let Some(socket) = std::env::var_os("FORKPOINT_TEST_SOCKET") else { return };
    runtime().block_on(async {
        let endpoint = forkpoint_backends::driver::docker::Endpoint::Unix(socket.into());
        let config =
            forkpoint_backends::driver::docker::DockerConfig::new(endpoint, std::env::temp_dir());
        let driver = forkpoint_backends::driver::docker::DockerDriver::open(config).unwrap();
        println!("{}", told(&driver.adopt("web").await.unwrap_err()));
    });
}

#[test]
fn what_was_removed_behind_our_back_is_told() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene.start("source", &[]);
        let (sandbox, spec) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        let paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
        scene.docker(&["rm", "-f", &name]);
        let mut paused = paused;
        let gone =
            paused.seal(SnapshotId::from_u128(unique()), SnapshotKind::Files).await.unwrap_err();
        assert!(matches!(gone, DriverError::SandboxMissing { .. }), "{gone:?}");
        paused.resume().await.unwrap();
        scene.driver.settle(sandbox.id()).await.unwrap();
        let gone = sandbox.pause(SnapshotKind::Files).await.unwrap_err();
        assert!(matches!(gone, DriverError::SandboxMissing { .. }), "{gone:?}");

        scene.docker(&["rmi", "-f", &format!("forkpoint/{}", artifact.snapshot)]);
        let err = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap_err();
        assert!(matches!(err, DriverError::Damaged { .. }), "{err:?}");
        assert!(told(&err).contains("gone from the engine"), "{}", told(&err));
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}

#[test]
fn names_networks_and_neighbours_that_are_gone_or_taken_are_told() {
    runtime().block_on(async {
        let scene = Scene::new();
        let (network, other) = (scene.name("net"), scene.start("other", &[]));
        scene.docker(&["network", "create", &network]);
        let name = scene.start("source", &["--network", &network]);
        let inner = scene.start("inner", &["--network", &format!("container:{other}")]);
        let (sandbox, mut spec) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        spec.attachments.native_name = Some(name.clone());
        let err = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap_err();
        assert!(told(&err).contains(&format!("the name `{name}` is taken")), "{}", told(&err));

        let (inner, inner_spec) = scene.adopt(&inner).await;
        let inside = scene.seal(inner.as_ref()).await;
        let copy = scene.driver.restore(new_id(), &inner_spec, &inside).await.unwrap();
        assert_eq!(shell(copy.as_ref(), "echo up").await, "up\n");
        let back = scene.driver.rollback(inner.id(), &inner_spec, &inside).await.unwrap();
        assert_eq!(shell(back.as_ref(), "echo up").await, "up\n");

        spec.attachments.native_name = None;
        scene.docker(&["rm", "-f", &name, &other]);
        scene.docker(&["network", "rm", &network]);
        let err = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap_err();
        assert!(told(&err).contains(&format!("network `{network}` is gone")), "{}", told(&err));
        let err = scene.driver.restore(new_id(), &inner_spec, &inside).await.unwrap_err();
        assert!(told(&err).contains("which is gone"), "{}", told(&err));
        spec.attachments.networks = false;
        let copy = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap();
        assert_eq!(shell(copy.as_ref(), "echo up").await, "up\n");
    });
}

#[test]
fn what_is_paused_stopped_or_read_only_is_sealed_as_it_is() {
    runtime().block_on(async {
        let scene = Scene::new();
        let paused = scene.start("paused", &[]);
        let stopped = scene.start("stopped", &[]);
        let fixed = scene.start("fixed", &["--read-only", "-v", "/data"]);
        scene.sh(&fixed, "echo x > /data/x");
        scene.docker(&["pause", &paused]);
        scene.docker(&["stop", &stopped]);
        for (name, state) in [(&paused, "paused"), (&stopped, "exited"), (&fixed, "running")] {
            let (sandbox, spec) = scene.adopt(name).await;
            let artifact = scene.seal(sandbox.as_ref()).await;
            assert_eq!(scene.inspect(name)["State"]["Status"], state);
            let copy = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap();
            assert_eq!(shell(copy.as_ref(), "echo up").await, "up\n");
            if state == "running" {
                assert_eq!(
                    shell(copy.as_ref(), "cat /data/x; echo y > /y 2>/dev/null || echo fixed")
                        .await,
                    "x\nfixed\n"
                );
                let bytes = futures::stream::iter([Ok(bytes::Bytes::new())]);
                let refused = copy
                    .write(&path("/y"), Box::pin(bytes), forkpoint_core::driver::WriteMode::Replace)
                    .await;
                assert!(told(&refused.unwrap_err()).contains("read-only"), "told");
            }
            scene.driver.destroy(copy.id()).await.unwrap();
            scene.driver.unseal(artifact.snapshot).await.unwrap();
        }
        scene.docker(&["unpause", &paused]);
    });
}

#[test]
fn what_a_snapshot_leaves_out_is_told_before() {
    runtime().block_on(async {
        let scene = Scene::new();
        let bind = scene.machine.directory.path().join("b");
        std::fs::create_dir(&bind).unwrap();
        let far = scene.name("far");
        let options = ["--opt", "type=tmpfs", "--opt", "device=tmpfs"];
        scene.docker(&[&["volume", "create"], &options[..], &[&far]].concat());
        let name = scene.start(
            "source",
            &[
                "-v",
                &format!("{}:/bind", bind.display()),
                "--tmpfs",
                "/quick",
                "-v",
                &format!("{far}:/far"),
            ],
        );
        let id = scene.driver.adopt(&name).await.unwrap().id;
        let findings = scene.driver.validate(id, SnapshotKind::Files).await.unwrap();
        let all: String = findings.iter().map(|finding| format!("{}\n", finding.message)).collect();
        for says in ["`/bind` is", "`/quick` is in memory", &format!("volume `{far}`")] {
            assert!(all.contains(says), "{says}: {all}");
        }
    });
}

#[test]
fn a_disk_that_is_full_leaves_nothing_half_made() {
    runtime().block_on(async {
        // Outlives what is mounted in it.
        let ground = tempfile::TempDir::new().unwrap();
        let disk = ground.path().join("disk");
        let at = ground.path().join("engine");
        std::fs::create_dir(&at).unwrap();
        let run = |args: &[&str]| {
            let output = Command::new(args[0]).args(&args[1..]).output().unwrap();
            assert!(
                output.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        run(&["truncate", "-s", "160M", disk.to_str().unwrap()]);
        run(&["mkfs.ext4", "-q", disk.to_str().unwrap()]);
        run(&["mount", "-o", "loop", disk.to_str().unwrap(), at.to_str().unwrap()]);
        let mounted = Mounted(at.clone());
        {
            let engine = forkpoint_testkit::docker::DockerEngine::own(&at);
            let directory = tempfile::TempDir::new().unwrap();
            let scene = Scene::on(Machine { engine, directory });
            let sandbox = scene.driver.create(new_id(), &spec()).await.unwrap();
            shell(sandbox.as_ref(), "echo good > /state").await;
            let sealed = scene.seal(sandbox.as_ref()).await;
            shell(sandbox.as_ref(), "dd if=/dev/urandom of=/big bs=1M count=80 2>/dev/null").await;
            let snapshot = SnapshotId::from_u128(unique());
            let err = try_seal(sandbox.as_ref(), snapshot).await.unwrap_err();
            assert!(told(&err).contains("no space left"), "{}", told(&err));
            let status = scene.driver.status(sandbox.id()).await.unwrap().unwrap();
            assert_eq!((status.state, status.base), (SandboxState::Running, Some(sealed.snapshot)));
            assert_eq!(scene.ours().iter().filter(|one| one.starts_with("image")).count(), 1);
            shell(sandbox.as_ref(), "rm /big").await;
            write(sandbox.as_ref(), "/state", "better").await;
            scene.seal(sandbox.as_ref()).await;
            scene.driver.destroy(sandbox.id()).await.unwrap();
        }
        drop(mounted);
    });
}

struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn an_image_that_nobody_has_is_told() {
    runtime().block_on(async {
        let scene = Scene::new();
        let missing = forkpoint_core::spec::SandboxSpec::new("no-such-image:1".parse().unwrap());
        let err = scene.driver.create(new_id(), &missing).await.unwrap_err();
        assert!(told(&err).contains("`no-such-image:1`"), "{}", told(&err));
        assert_eq!(scene.ours(), [] as [&str; 0]);
        let known =
            scene.driver.complete(&spec(), forkpoint_core::Timestamp::UNIX_EPOCH).await.unwrap();
        assert_eq!(known.template.as_str(), IMAGE);
    });
}
