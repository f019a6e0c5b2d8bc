//! A database server that is captured in the middle of somebody's transaction.

use forkpoint_core::driver::{Driver as _, Sandbox};

use super::{
    full::seal_full,
    scene::{Scene, sh, spec},
};

/// A server and a session with it, in which what is written to `/tmp/in` is done.
const START: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
cat > /tmp/as <<'END'
#!/bin/sh
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- env -C /tmp "$@"
END
chmod 755 /tmp/as
echo "export PATH=$bin:/usr/bin:/bin PGUSER=postgres PGHOST=/tmp PGDATABASE=postgres PGDATA=/tmp/data LC_ALL=C" > /tmp/env
. /tmp/env
install -d -o 65534 -g 65534 /tmp/data
/tmp/as initdb -D /tmp/data -A trust -U postgres --no-sync > /tmp/initdb 2>&1 || cat /tmp/initdb
/tmp/as postgres -c unix_socket_directories=/tmp -c listen_addresses=127.0.0.1 > /tmp/server 2>&1 < /dev/null &
for i in $(seq 1000); do pg_isready -q && break; sleep 0.02; done
pg_isready -q || cat /tmp/server
psql -qc 'create table numbers (n int)'
mkfifo /tmp/in
sh -c 'exec 3<>/tmp/in; exec psql -a <&3 > /tmp/out 2>&1' > /dev/null 2>&1 < /dev/null &
"#;

async fn server(sandbox: &dyn Sandbox, script: &str) -> String {
    sh(sandbox, &format!(". /tmp/env; {script}")).await
}

/// Does something in the session, and waits until it is done.
async fn session(sandbox: &dyn Sandbox, what: &str) {
    let wait = "for i in $(seq 1000); do grep -q done-$n /tmp/out && break; sleep 0.01; done; \
                grep -q done-$n /tmp/out || cat /tmp/out /tmp/server; ! grep -i 'fatal\\|error' /tmp/out";
    let said = server(
        sandbox,
        &format!("n=$(date +%N); printf '%s\\n' \"{what}\" \"\\\\echo done-$n\" > /tmp/in; {wait}"),
    )
    .await;
    assert_eq!(said, "", "after {what}");
}

async fn count(sandbox: &dyn Sandbox) -> String {
    server(sandbox, "psql -Atc 'select count(*), sum(n) from numbers'").await.trim().to_owned()
}

#[test]
fn a_transaction_goes_on_in_copies_and_in_place() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        assert_eq!(sh(&*sandbox, START).await, "");
        session(&*sandbox, "begin; insert into numbers select generate_series(1, 1000);").await;
        assert_eq!(count(&*sandbox).await, "0|");
        let artifact = seal_full(&*sandbox).await;
        session(&*sandbox, "commit;").await;
        assert_eq!(count(&*sandbox).await, "1000|500500");
        for _ in 0..2 {
            let copy = scene.restore(&artifact).await;
            assert_eq!(count(&*copy).await, "0|");
            session(&*copy, "insert into numbers values (7); commit;").await;
            assert_eq!(count(&*copy).await, "1001|500507");
            // What it wrote is there when it begins anew.
            server(&*copy, "/tmp/as pg_ctl -s -m fast -w stop; /tmp/as postgres -c unix_socket_directories=/tmp > /tmp/server 2>&1 < /dev/null & for i in $(seq 1000); do pg_isready -q && break; sleep 0.02; done").await;
            assert_eq!(count(&*copy).await, "1001|500507");
        }
        let back = scene.driver.rollback(sandbox.id(), &spec(), &artifact).await.unwrap();
        assert_eq!(count(&*back).await, "0|");
        session(&*back, "rollback; insert into numbers values (5);").await;
        assert_eq!(count(&*back).await, "1|5");
        // A full snapshot of what came back is as good.
        let again = seal_full(&*back).await;
        assert_eq!(count(&*scene.restore(&again).await).await, "1|5");
    });
}
