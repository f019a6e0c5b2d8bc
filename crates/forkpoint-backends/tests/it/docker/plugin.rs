//! Volumes of a driver that is not the engine's own: another program has them, and tells the engine where.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread,
};

use forkpoint_core::driver::{Driver as _, SnapshotKind};
use serde_json::{Value, json};

use super::{
    Machine, runtime,
    scene::{Scene, new_id, shell},
};

/// Has a directory for each volume, as long as the test lives.
struct Plugin(PathBuf);

impl Plugin {
    fn serve(directory: &Path) -> PathBuf {
        let socket = directory.join("plugin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let plugin = Self(directory.join("remote"));
        fs::create_dir(&plugin.0).unwrap();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let _ = plugin.answer(client);
            }
        });
        socket
    }

    fn answer(&self, mut client: UnixStream) -> io::Result<()> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        client.read_exact(&mut body)?;
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let call = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let told = self.told(&call, asked["Name"].as_str().unwrap_or_default()).to_string();
        write!(
            client,
            "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.plugins.v1.1+json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{told}",
            told.len()
        )
    }

    fn told(&self, call: &str, name: &str) -> Value {
        let volume = |name: &str| json!({ "Name": name, "Mountpoint": self.0.join(name) });
        match call.trim_start_matches('/') {
            "plugin.activate" => json!({ "Implements": ["VolumeDriver"] }),
            "volumedriver.capabilities" => json!({ "Capabilities": { "Scope": "global" } }),
            "volumedriver.create" => {
                fs::create_dir_all(self.0.join(name)).unwrap();
                json!({ "Err": "" })
            }
            "volumedriver.get" if self.0.join(name).is_dir() => {
                json!({ "Volume": volume(name), "Err": "" })
            }
            "volumedriver.get" => json!({ "Err": "no such volume" }),
            "volumedriver.list" => {
                let all = fs::read_dir(&self.0).unwrap().flatten();
                let all = all.map(|entry| volume(&entry.file_name().to_string_lossy()));
                json!({ "Volumes": all.collect::<Vec<_>>(), "Err": "" })
            }
            "volumedriver.mount" | "volumedriver.path" => {
                json!({ "Mountpoint": self.0.join(name), "Err": "" })
            }
            "volumedriver.remove" => {
                let _ = fs::remove_dir_all(self.0.join(name));
                json!({ "Err": "" })
            }
            _ => json!({ "Err": "" }),
        }
    }
}

#[test]
fn a_volume_of_another_driver_is_told_kept_and_given_to_copies() {
    runtime().block_on(async {
        let ground = tempfile::TempDir::new().unwrap();
        let socket = Plugin::serve(ground.path());
        let scene = Scene::on(Machine::own(tempfile::TempDir::new().unwrap()));
        let at = "/etc/docker";
        scene.machine.engine.inside(&format!(
            "mkdir -p {at} && mount -t tmpfs none {at} && mkdir {at}/plugins \
             && echo unix://{} > {at}/plugins/elsewhere.spec",
            socket.display()
        ));
        let far = scene.name("far");
        scene.docker(&["volume", "create", "--driver", "elsewhere", &far]);
        let name = scene.start("source", &["-v", &format!("{far}:/far")]);
        scene.sh(&name, "mkdir /far/deep; echo kept > /far/deep/file");
        assert_eq!(scene.inspect(&name)["Mounts"][0]["Driver"], "elsewhere");
        let (sandbox, spec) = scene.adopt(&name).await;
        let found = scene.driver.validate(sandbox.id(), SnapshotKind::Files).await.unwrap();
        assert!(found.iter().any(|one| one.message.contains("driver `elsewhere`")), "{found:?}");

        let artifact = scene.seal(sandbox.as_ref()).await;
        scene.sh(&name, "echo changed > /far/deep/file");
        let copy = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap();
        assert_eq!(shell(copy.as_ref(), "cat /far/deep/file").await, "kept\n");
        assert_eq!(scene.sh(&name, "cat /far/deep/file"), "changed", "the source's own stays");
        // What only the other program can change is not changed behind its back.
        let refused = scene.driver.rollback(sandbox.id(), &spec, &artifact).await;
        let told = refused.err().map(|err| super::scene::told(&err)).unwrap_or_default();
        assert!(told.contains("out of reach"), "{told}");
        assert_eq!(scene.sh(&name, "cat /far/deep/file"), "changed", "nothing happened");
        scene.driver.destroy(copy.id()).await.unwrap();
        scene.driver.unseal(artifact.snapshot).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
        scene.docker(&["rm", "-f", &name]);
        scene.docker(&["volume", "rm", &far]);
    });
}
