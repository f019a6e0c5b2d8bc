//! Whether what runs did anything since the last full snapshot.

use forkpoint_core::driver::{Artifact, Command, Sandbox, SnapshotKind, TtySize};
use futures::StreamExt as _;

use super::{
    full::seal_full,
    scene::{Scene, seal, sh, start},
};

/// Says how often it was told to count.
const COUNTER: &str = "
import signal
count = 0
def more(*_):
    global count
    count += 1
    open('/tmp/count', 'w').write(str(count))
signal.signal(signal.SIGUSR1, more)
print('on', flush=True)
while True: signal.pause()
";

async fn is_unchanged(sandbox: &dyn Sandbox, since: &Artifact) -> bool {
    let mut paused = sandbox.pause(SnapshotKind::Full).await.unwrap();
    let unchanged = paused.is_unchanged(since).await;
    paused.resume().await.unwrap();
    unchanged.unwrap()
}

/// A tick of the clock that files are dated by: what changed in the one of the seal is a doubt.
async fn sealed(sandbox: &dyn Sandbox) -> Artifact {
    sh(sandbox, "sleep 0.05").await;
    seal_full(sandbox).await
}

/// Each a change of files, of memory, or of who runs.
const CHANGES: [&str; 3] = [
    "touch /srv/new",
    "kill -USR1 $(pidof python3); until [ -s /tmp/count ]; do :; done; rm /tmp/count",
    "sleep 1000 >/dev/null 2>&1 </dev/null &",
];

#[test]
fn what_only_waits_is_unchanged_and_no_change_is_unseen() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let sandbox = &*sandbox;
        let idle = sealed(sandbox).await;
        assert!(is_unchanged(sandbox, &idle).await, "nothing runs, and nothing was written");

        let _running = start(sandbox, &format!("exec python3 -c \"{COUNTER}\"")).await;
        assert!(!is_unchanged(sandbox, &idle).await, "something runs now");
        let of_files = seal(sandbox).await;
        assert!(!is_unchanged(sandbox, &of_files).await, "it holds no processes");
        for change in CHANGES {
            // Twice: the second may lie over the first.
            for _ in 0..2 {
                let last = sealed(sandbox).await;
                assert!(is_unchanged(sandbox, &last).await, "nothing was done before: {change}");
                assert!(is_unchanged(sandbox, &last).await, "nor by being asked: {change}");
            }
            let last = sealed(sandbox).await;
            sh(sandbox, change).await;
            assert!(!is_unchanged(sandbox, &last).await, "{change}");
        }
    });
}

/// What init has open is of the root before the seal.
#[test]
fn what_is_started_after_a_seal_can_be_kept() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        seal(&*sandbox).await;
        let _without_input = start(&*sandbox, "echo on; exec sleep 1000").await;
        let shell = Command::new(["sh", "-c", "tty; exec sleep 1000"]);
        let shell = Command { tty: Some(TtySize { rows: 31, columns: 87 }), ..shell };
        let mut at_a_terminal = sandbox.exec(&shell).await.unwrap();
        let told = at_a_terminal.stdout.next().await.unwrap().unwrap();
        assert_eq!(&told[..], b"/dev/pts/0\r\n");
        seal_full(&*sandbox).await;
    });
}
