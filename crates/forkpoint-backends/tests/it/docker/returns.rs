//! Rollbacks that cannot go through, and what they leave of a container's own.

use std::process::Command;

use forkpoint_core::driver::{Driver as _, SandboxState, Severity, SnapshotKind};

use super::{
    runtime,
    scene::{Scene, shell, told},
};

/// A container that is removed when it stops, in two networks, with a port; and a device that can go.
async fn passing(scene: &Scene, device: &std::path::Path) -> String {
    let made = Command::new("mknod").arg(device).args(["c", "1", "3"]).status();
    assert!(made.unwrap().success());
    let network = scene.name("net");
    scene.docker(&["network", "create", &network]);
    let device = format!("{}:/dev/extra", device.display());
    let volume = format!("{}:/data", scene.name("data"));
    let args = ["--rm", "-p", "80", "-v", "/anonymous", "-v", &volume, "--device", &device];
    let name = scene.start("source", &args);
    scene.docker(&["network", "connect", "--alias", "other", &network, &name]);
    scene.sh(
        &name,
        "echo good > /root/state; echo good > /data/state; echo good > /anonymous/state",
    );
    name
}

const LOOK: &str = "cat /root/state /data/state /anonymous/state";

#[test]
fn one_that_is_removed_when_it_stops_survives_a_rollback_that_cannot_start() {
    runtime().block_on(async {
        let scene = Scene::new();
        let directory = tempfile::TempDir::new().unwrap();
        let device = directory.path().join("device");
        let name = passing(&scene, &device).await;
        let (sandbox, spec) = scene.adopt(&name).await;
        let findings = scene.driver.validate(sandbox.id(), SnapshotKind::Files).await.unwrap();
        let said = |text: &str| findings.iter().any(|one| one.message.contains(text));
        assert!(said("(`--rm`); its snapshots stay"), "{findings:?}");
        assert!(findings.iter().all(|one| one.severity == Severity::Note), "{findings:?}");
        let sealed = scene.seal(sandbox.as_ref()).await;
        scene.sh(&name, "for at in /root /data /anonymous; do echo bad > $at/state; done; sleep 100 & echo $! > /root/pid");
        let before = scene.inspect(&name);
        std::fs::remove_file(&device).unwrap();

        let failed = scene.driver.rollback(sandbox.id(), &spec, &sealed).await.map(drop);
        let failed = told(&failed.unwrap_err());
        assert!(failed.contains("device"), "{failed}");
        let status = scene.driver.status(sandbox.id()).await.unwrap().unwrap();
        assert_eq!(status.state, SandboxState::Running);
        let after = scene.inspect(&name);
        assert_eq!(before["Id"], after["Id"], "the same container");
        assert_eq!(before["State"]["Pid"], after["State"]["Pid"], "which never ended");
        assert_eq!(shell(sandbox.as_ref(), LOOK).await, "bad\nbad\nbad\n");
        let networks = |told: &serde_json::Value| -> Vec<String> {
            told["NetworkSettings"]["Networks"].as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(networks(&before), networks(&after));
        let aliases = &after["NetworkSettings"]["Networks"][scene.name("net")]["Aliases"];
        assert!(aliases.as_array().unwrap().iter().any(|alias| alias == "other"), "{aliases}");
        assert!(after["NetworkSettings"]["Ports"]["80/tcp"][0]["HostPort"].is_string());

        let made = Command::new("mknod").arg(&device).args(["c", "1", "3"]).status();
        assert!(made.unwrap().success());
        scene.driver.rollback(sandbox.id(), &spec, &sealed).await.unwrap();
        assert_eq!(shell(sandbox.as_ref(), LOOK).await, "good\ngood\ngood\n");
        let all = scene.docker(&["ps", "-a", "--format", "{{.Names}}"]);
        let of_it = |other: &&str| other.contains(&scene.mark) || other.contains(&sandbox.id().to_string());
        assert_eq!(all.lines().filter(of_it).collect::<Vec<_>>(), [name.as_str()]);
    });
}

#[test]
fn what_only_the_old_container_had_goes_with_it_and_what_others_have_stays() {
    runtime().block_on(async {
        let scene = Scene::new();
        let early = scene.start("early", &[]);
        let (sandbox, _) = scene.adopt(&early).await;
        let sealed = scene.seal(sandbox.as_ref()).await;

        // The same sandbox's place is taken by what has three volumes more.
        let volume = format!("{}:/named", scene.name("named"));
        let name = scene.start("source", &["-v", "/alone", "-v", "/shared", "-v", &volume]);
        scene.sh(&name, "echo x > /alone/x; echo x > /shared/x; echo x > /named/x");
        let volumes = || -> Vec<String> {
            scene.docker(&["volume", "ls", "-q"]).lines().map(str::to_owned).collect()
        };
        let at = |place: &str| {
            let told = scene.inspect(&name);
            let mounts = told["Mounts"].as_array().unwrap().clone();
            let mount = mounts.iter().find(|mount| mount["Destination"] == place).unwrap().clone();
            mount["Name"].as_str().unwrap().to_owned()
        };
        let (alone, shared) = (at("/alone"), at("/shared"));
        let other = scene.start("other", &["-v", &format!("{shared}:/theirs")]);
        let (second, spec) = scene.adopt(&name).await;

        // Carried along by a rollback to itself, they still have no name of their own.
        let itself = scene.seal(second.as_ref()).await;
        scene.driver.rollback(second.id(), &spec, &itself).await.unwrap();
        assert_eq!(shell(second.as_ref(), "cat /alone/x /shared/x /named/x").await, "x\nx\nx\n");
        assert!(volumes().contains(&alone) && at("/alone") == alone);

        scene.driver.rollback(second.id(), &spec, &sealed).await.unwrap();
        assert!(!volumes().contains(&alone), "nobody else had it");
        assert!(volumes().contains(&shared), "another container has it");
        assert!(volumes().contains(&scene.name("named")), "somebody named it");
        assert_eq!(scene.sh(&other, "cat /theirs/x"), "x");
    });
}
