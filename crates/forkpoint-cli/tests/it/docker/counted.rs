//! What `stats` says that containers occupy: each byte once, and as long as somebody has it.

use super::Dock;

/// Of a file in the container, and of one in its volume.
const BIG: u64 = 8 << 20;

fn stored(dock: &Dock) -> u64 {
    dock.ok(&["stats", "--json"]).json()["stored_bytes"].as_u64().expect("a number")
}

#[test]
fn shared_bytes_are_counted_once_and_as_long_as_somebody_has_them() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &["-v", &format!("{}:/data", dock.name("data"))]);
    dock.sh("web", "for at in /root /data; do dd if=/dev/urandom of=$at/big bs=1M count=8; done");
    let within = |what: &str, bytes: u64| {
        let told = stored(&dock);
        assert!((2 * BIG..2 * BIG + bytes).contains(&told), "{what}: {told}");
    };
    let change = |of: &str| dock.sh(of, "for at in /root /data; do echo x >> $at/small; done");
    let first = dock.ok(&["snapshot", &web]).id().to_owned();
    within("the first", 1 << 20);
    change("web");
    let second = dock.ok(&["snapshot", &web]).id().to_owned();
    dock.sh("web", "echo y >> /data/small");
    let third = dock.ok(&["snapshot", &web]).id().to_owned();
    within("three that differ in little", 1 << 20);

    dock.ok(&["delete", "--force", &first]);
    within("the second and the third have what the first brought", 1 << 20);
    dock.ok(&["delete", "--force", &second]);
    within("and so has the third alone", 1 << 20);

    let copy = dock.ok(&["restore", &third, "--name", &dock.name("copy")]).id().to_owned();
    change("copy");
    let fourth = dock.ok(&["snapshot", &copy]).id().to_owned();
    dock.ok(&["rm", "--force", &web]);
    dock.ok(&["delete", "--force", &third]);
    within("what a copy was made from is in its snapshots", 1 << 20);
    dock.sh("copy", "cat /dev/null > /root/big; dd if=/dev/urandom of=/data/big bs=1M count=8");
    let fifth = dock.ok(&["snapshot", &copy]).id().to_owned();
    let both = stored(&dock);
    assert!((3 * BIG..3 * BIG + (1 << 20)).contains(&both), "another volume: {both}");
    dock.ok(&["delete", "--force", &fourth]);
    within("the old volume is gone, and the layer is below", 1 << 20);
    dock.ok(&["rm", "--force", &copy]);
    dock.ok(&["delete", "--force", &fifth]);
    assert_eq!(stored(&dock), 0, "nobody has any of it");
    assert_eq!(dock.ok(&["stats", "--json"]).json()["waiting_chores"], 0);
}
