//! A container with everything, given back as it was.

use forkpoint_core::{
    driver::{Artifact, Driver as _, DriverError, Sandbox, SandboxState},
    spec::{SandboxSpec, VolumeChoice},
};
use serde_json::{Value, json};

use super::{
    runtime,
    scene::{Scene, new_id, shell, told},
    unique,
};

/// A number below this that hardly any other test comes up with.
fn some(below: u128) -> u128 {
    let number = unique();
    // Of this process, of this call and of this moment.
    (number ^ number >> 32 ^ number >> 64 ^ number >> 73) % below
}

/// Makes a network whose addresses no other one has; what they begin with.
fn network_with_addresses(scene: &Scene, name: &str) -> String {
    for _ in 0..20 {
        let number = some(100 * 256);
        let net = format!("10.{}.{}", 100 + number / 256, number % 256);
        let mut create = scene.machine.engine.command();
        create.args(["network", "create", "--subnet", &format!("{net}.0/24"), name]);
        if create.output().unwrap().status.success() {
            return net;
        }
    }
    panic!("no addresses are free");
}

/// A port that no other test asks for.
fn port() -> u32 {
    20_000 + u32::try_from(some(20_000)).unwrap()
}

struct Web {
    scene: Scene,
    name: String,
    bind: String,
    port: u32,
}

impl Web {
    fn new() -> Self {
        let scene = Scene::new();
        let (front, back, named) = (scene.name("front"), scene.name("back"), scene.name("named"));
        let net = network_with_addresses(&scene, &front);
        scene.docker(&["network", "create", &back]);
        let bind = scene.machine.directory.path().join("bind").display().to_string();
        std::fs::create_dir(&bind).unwrap();
        std::fs::write(format!("{bind}/file"), "of the host").unwrap();
        let ip = format!("{net}.77");
        let (named_bind, bind_bind) = (format!("{named}:/named"), format!("{bind}:/bind:ro"));
        let port = port();
        let published = format!("127.0.0.1:{port}:80");
        let args = [
            &["--network", &front, "--network-alias", "www", "--ip", &ip, "--hostname", "webhost"]
                [..],
            &["-v", &named_bind, "-v", "/anon", "-v", &bind_bind, "--tmpfs", "/quick"],
            &["-p", &published, "-p", "81", "--expose", "99"],
            &["--memory", "67108864", "--cpus", "0.5", "--pids-limit", "64", "--shm-size", "1m"],
            &[
                "--cap-add",
                "NET_ADMIN",
                "--cap-drop",
                "MKNOD",
                "--security-opt",
                "no-new-privileges",
            ],
            &[
                "--restart",
                "on-failure:3",
                "--ulimit",
                "nofile=100:200",
                "--device",
                "/dev/null:/dev/own",
            ],
            &["--health-cmd", "true", "--health-interval", "1h", "--stop-signal", "TERM"],
            &["--log-opt", "max-size=1m", "--add-host", "db:10.9.9.9", "--dns", "10.9.9.8"],
            &[
                "--env",
                "COLOUR=blue",
                "--workdir",
                "/srv",
                "--user",
                "0:0",
                "--label",
                "theirs=yes",
            ],
        ];
        let name = scene.start("web", &args.concat());
        scene.docker(&["network", "connect", "--alias", "worker", &back, &name]);
        Self { scene, name, bind, port }
    }

    fn fill(&self) {
        let script = "echo root > /root/file; echo named > /named/file; echo anon > /anon/file; \
                      mkdir /anon/deep; echo 10.1.1.1 api >> /etc/hosts";
        self.scene.sh(&self.name, script);
    }

    fn ruin(&self) {
        self.scene.sh(&self.name, "rm -r /root/file /named/file /anon/*; echo x > /named/other");
    }
}

const LOOK: &str = "cat /root/file /named/file /anon/file /bind/file; echo; ls /named; ls /anon; \
                    grep api /etc/hosts; echo $COLOUR; pwd; test -c /dev/own && echo device";
const SEEN: &str =
    "root\nnamed\nanon\nof the host\nfile\ndeep\nfile\n10.1.1.1 api\nblue\n/srv\ndevice\n";

/// What of `inspect` must be the same, whoever it is.
fn kept(mut inspect: Value, differs: &[&str]) -> Value {
    let mut kept =
        json!({ "Config": inspect["Config"].take(), "HostConfig": inspect["HostConfig"].take() });
    kept["Config"]["Image"].take();
    let labels = kept["Config"]["Labels"].as_object_mut().unwrap();
    labels.retain(|key, _| !key.starts_with("forkpoint."));
    // Which volume it is may differ; that there is one there is looked at from inside.
    kept["HostConfig"]["Binds"].take();
    kept["HostConfig"]["VolumesFrom"].take();
    for path in differs {
        *kept.pointer_mut(path).unwrap() = Value::Null;
    }
    kept
}

fn aliases(inspect: &Value) -> Vec<(String, Vec<String>)> {
    let id = inspect["Id"].as_str().unwrap();
    let networks = inspect["NetworkSettings"]["Networks"].as_object().unwrap();
    let of = |network: &Value| -> Vec<String> {
        let all = network["Aliases"].as_array().into_iter().flatten();
        let all = all.map(|alias| alias.as_str().unwrap().to_owned());
        all.filter(|alias| !id.starts_with(alias.as_str())).collect()
    };
    networks.iter().map(|(name, network)| (name.clone(), of(network))).collect()
}

async fn snapshot(web: &Web) -> (std::sync::Arc<dyn Sandbox>, SandboxSpec, Artifact) {
    let (sandbox, spec) = web.scene.adopt(&web.name).await;
    let artifact = web.scene.seal(sandbox.as_ref()).await;
    (sandbox, spec, artifact)
}

#[test]
fn a_container_with_everything_is_restored_as_it_was() {
    runtime().block_on(async {
        let web = Web::new();
        web.fill();
        let before = web.scene.inspect(&web.name);
        let (_, mut spec, artifact) = snapshot(&web).await;
        assert_eq!(web.scene.inspect(&web.name)["State"]["Status"], "running");
        web.ruin();
        let driver = &web.scene.driver;
        let id = new_id();
        spec.attachments.native_name = Some(web.scene.name("copy"));
        let copy = driver.restore(id, &spec, &artifact).await.unwrap();
        assert_eq!(shell(copy.as_ref(), LOOK).await, SEEN);

        let notices = driver.notices(id).join("\n");
        assert!(
            notices.contains(&format!(
                "port {} of the host is taken: 80/tcp is published as",
                web.port
            )),
            "{notices}"
        );
        assert!(notices.contains(".77 of network"), "{notices}");
        assert!(driver.notices(id).is_empty(), "told once");
        let after = web.scene.inspect(&web.scene.name("copy"));
        let differs = ["/HostConfig/PortBindings"];
        assert_eq!(kept(after.clone(), &differs), kept(before.clone(), &differs));
        assert_eq!(aliases(&after), aliases(&before));
        assert_eq!(
            after["Config"]["Labels"]["forkpoint.snapshot"],
            artifact.snapshot.to_string().as_str()
        );
        assert_eq!(after["Config"]["Labels"]["forkpoint.sandbox"], id.to_string().as_str());
        let ports = &after["NetworkSettings"]["Ports"];
        assert!(ports["80/tcp"][0]["HostPort"].as_str().unwrap().parse::<u16>().is_ok(), "{ports}");

        shell(copy.as_ref(), "echo copy > /named/file; echo copy > /anon/file").await;
        assert_eq!(
            web.scene.sh(&web.name, "ls /named /anon"),
            "/anon:\n\n/named:\nother",
            "nothing is shared"
        );
        driver.destroy(id).await.unwrap();
        assert_eq!(web.scene.inspect(&web.name)["State"]["Status"], "running", "the source");
        for piece in &artifact.pieces {
            driver.discard(&piece.name).await.unwrap();
        }
        assert_eq!(web.scene.ours(), [] as [&str; 0]);
    });
}

#[test]
fn a_container_with_everything_is_rolled_back_in_place() {
    runtime().block_on(async {
        let web = Web::new();
        web.fill();
        let before = web.scene.inspect(&web.name);
        let (sandbox, spec, artifact) = snapshot(&web).await;
        web.ruin();
        let driver = &web.scene.driver;
        for _ in 0..2 {
            let back = driver.rollback(sandbox.id(), &spec, &artifact).await.unwrap();
            assert_eq!(shell(back.as_ref(), LOOK).await, SEEN);
            assert_eq!(driver.notices(sandbox.id()), [] as [&str; 0], "nothing was taken");
            let after = web.scene.inspect(&web.name);
            assert_ne!(after["Id"], before["Id"]);
            let differs = ["/HostConfig/PortBindings"];
            assert_eq!(kept(after.clone(), &differs), kept(before.clone(), &differs));
            assert_eq!(aliases(&after), aliases(&before));
            assert_eq!(after["NetworkSettings"]["Ports"], before["NetworkSettings"]["Ports"]);
            let address = |inspect: &Value| {
                inspect["NetworkSettings"]["Networks"][web.scene.name("front")]["IPAddress"].clone()
            };
            assert_eq!(address(&after), address(&before));
            web.ruin();
        }
        let status = driver.status(sandbox.id()).await.unwrap().unwrap();
        assert_eq!((status.state, status.base), (SandboxState::Running, Some(artifact.snapshot)));
        assert!(!driver.list().await.unwrap().contains(&sandbox.id()), "it is theirs");
        let refused = driver.destroy(sandbox.id()).await;
        assert!(matches!(refused, Err(DriverError::Foreign { .. })), "{refused:?}");
        assert_eq!(driver.adopt(&web.name).await.unwrap().id, sandbox.id(), "the same sandbox");
        let named: Vec<String> = web
            .scene
            .docker(&["ps", "-a", "--format", "{{.Names}}"])
            .lines()
            .map(str::to_owned)
            .filter(|name| name.contains(&sandbox.id().to_string()))
            .collect();
        assert!(named.is_empty(), "{named:?}");

        web.scene.docker(&["rm", "-f", &web.name]);
        for piece in &artifact.pieces {
            driver.discard(&piece.name).await.unwrap();
        }
        assert_eq!(web.scene.ours(), [] as [&str; 0]);
        assert!(std::path::Path::new(&web.bind).join("file").exists());
    });
}

#[test]
fn one_container_becomes_eight_with_volumes_and_addresses_of_their_own() {
    runtime().block_on(async {
        let scene = Scene::new();
        let (network, volume) = (scene.name("net"), format!("{}:/data", scene.name("data")));
        scene.docker(&["network", "create", &network]);
        let name = scene.start("source", &["--network", &network, "-v", &volume]);
        scene.sh(&name, "echo one > /data/file");
        let (sandbox, spec) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        let ids: Vec<_> = (0..8).map(|_| new_id()).collect();
        let restored = futures::future::join_all(
            ids.iter().map(|id| scene.driver.restore(*id, &spec, &artifact)),
        );
        let copies: Vec<_> = restored
            .await
            .into_iter()
            .map(|copy| copy.unwrap_or_else(|err| panic!("{}", told(&err))))
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        for (number, copy) in copies.iter().enumerate() {
            let script = format!("cat /data/file; echo {number} > /data/file");
            assert_eq!(shell(copy.as_ref(), &script).await, "one\n");
            let inspect = scene.inspect(&format!("forkpoint-{}", copy.id()));
            seen.insert(inspect["NetworkSettings"]["Networks"][&network]["IPAddress"].to_string());
        }
        assert_eq!(seen.len(), 8, "{seen:?}");
        assert_eq!(scene.sh(&name, "cat /data/file"), "one");
        for id in ids {
            scene.driver.destroy(id).await.unwrap();
        }
        scene.driver.unseal(artifact.snapshot).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}

#[test]
fn volumes_are_copied_shared_or_left_out_and_what_is_asked_comes_first() {
    runtime().block_on(async {
        let scene = Scene::new();
        let volume = format!("{}:/data", scene.name("data"));
        let name = scene.start("source", &["-v", &volume, "-p", "90", "--env", "A=1"]);
        scene.sh(&name, "echo one > /data/file");
        let (sandbox, spec) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        scene.sh(&name, "echo two > /data/file");
        for (choice, seen) in [
            (VolumeChoice::Copy, "one\n"),
            (VolumeChoice::Share, "two\n"),
            (VolumeChoice::None, "none\n"),
        ] {
            let mut spec = spec.clone();
            spec.attachments.volumes = choice;
            spec.attachments.networks = false;
            spec.attachments.publish = vec!["127.0.0.1::7000/udp".parse().unwrap()];
            spec.env.insert("A".into(), "2".into());
            let copy = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap();
            let look = "cat /data/file 2>/dev/null || echo none; echo $A";
            assert_eq!(shell(copy.as_ref(), look).await, format!("{seen}2\n"));
            let ports =
                &scene.inspect(&format!("forkpoint-{}", copy.id()))["NetworkSettings"]["Ports"];
            assert_eq!(ports["7000/udp"][0]["HostIp"], "127.0.0.1", "{ports}");
            assert!(ports["90/tcp"].is_null(), "{ports}");
            scene.driver.destroy(copy.id()).await.unwrap();
        }
        assert_eq!(scene.sh(&name, "cat /data/file"), "two", "what is shared is not removed");
        scene.driver.unseal(artifact.snapshot).await.unwrap();
    });
}

/// One with options is a mount that only the engine sees.
#[test]
fn a_volume_that_only_the_engine_sees_is_kept_as_it_sends_it() {
    runtime().block_on(async {
        let scene = Scene::new();
        let far = scene.name("far");
        let options = ["--opt", "type=tmpfs", "--opt", "device=tmpfs"];
        scene.docker(&[&["volume", "create"], &options[..], &[&far]].concat());
        let name = scene.start("source", &["-v", &format!("{far}:/far")]);
        scene.sh(&name, "mkdir -p /far/deep; echo kept > /far/deep/file");
        let (sandbox, spec) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        let copy = scene.driver.restore(new_id(), &spec, &artifact).await.unwrap();
        assert_eq!(shell(copy.as_ref(), "cat /far/deep/file").await, "kept\n");
        scene.driver.destroy(copy.id()).await.unwrap();
        scene.driver.unseal(artifact.snapshot).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}
