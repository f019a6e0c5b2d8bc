//! Nothing goes that is not ours.

use forkpoint_core::{
    driver::{Driver as _, DriverError, PieceName},
    id::SnapshotId,
};

use super::{
    IMAGE, runtime,
    scene::{Scene, new_id, shell, told, write},
    spec, unique,
};

#[test]
fn a_foreign_a_stale_and_a_mistyped_id_delete_nothing() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene.start("source", &[]);
        let (sandbox, _) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        let piece = artifact.pieces[0].name.0.clone();
        // Others use the engine too: only what this test could have deleted is counted.
        let (ours, theirs) = (artifact.snapshot.to_string(), IMAGE.split(':').next().unwrap());
        let images = || {
            let names = scene.docker(&["images", "-a", "--format", "{{.Repository}}:{{.Tag}}"]);
            names.lines().filter(|name| name.contains(&ours) || name.starts_with(theirs)).count()
        };
        let before = images();
        assert!(before >= 2, "{before}");
        let image = scene.inspect(IMAGE)["Id"].as_str().unwrap().to_owned();
        let mistyped = [
            IMAGE.to_owned(),
            image,
            piece.to_uppercase(),
            piece.replace("docker:", ""),
            piece[..piece.len() - 1].to_owned(),
            format!("{piece} "),
            format!("docker:{}:{}", "0".repeat(32), artifact.snapshot),
            format!("forkpoint/{}:latest", artifact.snapshot),
            "*".to_owned(),
            String::new(),
        ];
        for odd in mistyped {
            let refused = scene.driver.discard(&PieceName(odd.clone())).await;
            assert!(matches!(refused, Err(DriverError::Foreign { .. })), "{odd}: {refused:?}");
        }
        let stale = piece
            .replace(&artifact.snapshot.to_string(), &SnapshotId::from_u128(unique()).to_string());
        scene.driver.discard(&PieceName(stale)).await.unwrap();
        scene.driver.unseal(SnapshotId::from_u128(unique())).await.unwrap();
        assert_eq!(images(), before);

        for _ in 0..2 {
            scene.driver.discard(&PieceName(piece.clone())).await.unwrap();
        }
        assert_eq!(images(), before - 1);
        scene.docker(&["inspect", IMAGE]);
        let refused = scene.driver.destroy(sandbox.id()).await;
        assert!(matches!(refused, Err(DriverError::Foreign { .. })), "{refused:?}");
    });
}

#[test]
fn what_somebody_named_otherwise_stays_theirs() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene.start("source", &[]);
        let (sandbox, _) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        let theirs = format!("{}:mine", scene.name("named"));
        let ours = format!("forkpoint/{}:latest", artifact.snapshot);
        scene.docker(&["tag", &ours, &theirs]);
        scene.driver.discard(&artifact.pieces[0].name).await.unwrap();
        scene.driver.discard(&artifact.pieces[0].name).await.unwrap();
        scene.docker(&["inspect", &theirs]);
        assert!(
            !scene
                .machine
                .engine
                .command()
                .args(["inspect", &ours])
                .output()
                .unwrap()
                .status
                .success()
        );
        scene.docker(&["rmi", &theirs]);
    });
}

#[test]
fn an_image_that_a_container_stands_on_is_kept_and_told() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene.start("source", &[]);
        let (sandbox, _) = scene.adopt(&name).await;
        let artifact = scene.seal(sandbox.as_ref()).await;
        let image = format!("forkpoint/{}", artifact.snapshot);
        let theirs = scene.name("theirs");
        scene.docker(&["run", "-d", "--name", &theirs, &image]);
        let err = scene.driver.discard(&artifact.pieces[0].name).await.unwrap_err();
        assert!(matches!(err, DriverError::InUse { .. }), "{err:?}");
        assert!(told(&err).contains(&image), "{}", told(&err));
        let theirs_id = scene.driver.adopt(&theirs).await.unwrap().id;
        assert!(
            !scene.driver.list().await.unwrap().contains(&theirs_id),
            "a container of theirs is no sandbox of ours"
        );
        assert!(matches!(scene.driver.destroy(theirs_id).await, Err(DriverError::Foreign { .. })));
        scene.docker(&["rm", "-f", &theirs]);
        scene.driver.discard(&artifact.pieces[0].name).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}

#[test]
fn snapshots_of_one_line_go_in_any_order() {
    runtime().block_on(async {
        let scene = Scene::new();
        let sandbox = scene.driver.create(new_id(), &spec()).await.unwrap();
        let mut line = Vec::new();
        for number in 0..4 {
            write(sandbox.as_ref(), &format!("/step{number}"), "x").await;
            line.push(scene.seal(sandbox.as_ref()).await);
        }
        for index in [1, 0, 3] {
            scene.driver.discard(&line[index].pieces[0].name).await.unwrap();
        }
        let copy = scene.driver.restore(new_id(), &spec(), &line[2]).await.unwrap();
        assert_eq!(shell(copy.as_ref(), "ls / | grep step").await, "step0\nstep1\nstep2\n");
        for id in [copy.id(), sandbox.id()] {
            scene.driver.destroy(id).await.unwrap();
        }
        scene.driver.discard(&line[2].pieces[0].name).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}
