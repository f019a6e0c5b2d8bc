//! Files of a workspace that whoever runs this may not read. Root may read all of them.

use forkpoint_core::driver::FileDiff;

use super::{
    super::scene::{sh, with_causes},
    *,
};

const WHY: &str = "cannot be read by the user that runs this: `chmod` it";

fn is_denied() -> bool {
    !rustix::process::geteuid().is_root()
}

fn desk() -> Desk {
    let desk = Desk::with_files();
    desk.write("secret", "secret");
    desk.write("shut/file", "inside");
    set_mode(&desk.path("secret"), 0);
    set_mode(&desk.path("shut"), 0);
    desk
}

async fn diff(desk: &Desk, of: &dyn Sandbox, spec: &SandboxSpec) -> DriverResult<FileDiff> {
    let now = FileState::Sandbox(of.id());
    let from = FileState::Beginning { of: Box::new(now.clone()), spec: Box::new(spec.clone()) };
    desk.scene.driver.diff(&from, &now, &[]).await
}

#[test]
fn a_copy_names_what_it_cannot_read() {
    let desk = desk();
    desk.scene.run(async {
        let spec = desk.spec(WorkspaceMode::Copy).await;
        if is_denied() {
            // In the order in which the disk has them.
            for _ in 0..2 {
                let told = desk.refused(&spec).await;
                let is_named =
                    |name: &&str| told.contains(&format!("`{}` {WHY}", desk.path(name).display()));
                let named = ["secret", "shut"].into_iter().find(is_named);
                set_mode(&desk.path(named.unwrap_or_else(|| panic!("{told}"))), 0o700);
            }
        }
        let sandbox = desk.scene.create_as(&spec).await;
        assert_eq!(sh(&*sandbox, "cat secret shut/file").await, "secretinside");
    });
    set_mode(&desk.path("shut"), 0o700);
}

#[test]
fn entering_works_and_what_was_not_touched_stops_nothing() {
    let desk = desk();
    desk.scene.run(async {
        let spec = desk.spec(WorkspaceMode::Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        assert_eq!(sh(&*sandbox, "cat secret shut/file").await, "secretinside", "as its owner");
        sh(&*sandbox, "echo new > new").await;
        assert_eq!(diff(&desk, &*sandbox, &spec).await.unwrap().changes.len(), 1);
        assert_eq!(steps(&desk.apply(&*sandbox).await), [("new".to_owned(), ApplyStep::Create)]);
    });
    set_mode(&desk.path("shut"), 0o700);
}

#[test]
fn what_was_changed_and_cannot_be_read_is_named_and_nothing_is_applied() {
    let desk = desk();
    desk.scene.run(async {
        let spec = desk.spec(WorkspaceMode::Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        sh(&*sandbox, "echo new > new; echo more >> shut/file").await;
        if is_denied() {
            let told = with_causes(&diff(&desk, &*sandbox, &spec).await.unwrap_err());
            assert!(told.contains(&format!("`/workspace/shut` {WHY}")), "{told}");
            let told = desk.try_apply(&*sandbox, &ApplyRequest::default()).await.unwrap_err();
            let told = with_causes(&told);
            assert!(told.contains(&format!("`shut` {WHY}")), "{told}");
            assert!(!desk.path("new").exists() && desk.is_clean());
        }
        set_mode(&desk.path("shut"), 0o700);
        sh(&*sandbox, "chmod 700 shut; echo more >> secret").await;
        diff(&desk, &*sandbox, &spec).await.unwrap();
        if is_denied() {
            let told = desk.try_apply(&*sandbox, &ApplyRequest::default()).await.unwrap_err();
            let told = with_causes(&told);
            assert!(told.contains(&format!("`{}` {WHY}", desk.path("secret").display())), "{told}");
            assert!(!desk.path("new").exists() && desk.is_clean());
            sh(&*sandbox, "chmod 600 secret").await;
        }
        // The host changed the directory's mode meanwhile, which may count.
        assert!(desk.apply_as(&*sandbox, &forced()).await.done);
        set_mode(&desk.path("secret"), 0o600);
        assert_eq!(desk.read("shut/file"), "insidemore\n");
        assert_eq!(desk.read("secret"), "secretmore\n");
    });
}
