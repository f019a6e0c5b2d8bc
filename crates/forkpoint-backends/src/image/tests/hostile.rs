//! What bad archives try.

use super::*;

fn attack(entries: Vec<TarEntry>, reason: &str) {
    let ground = Ground::new();
    let told = refused(ground.unpack(&tar(entries)));
    assert!(told.contains(reason), "{told}");
    ground.check_outside();
}

#[test]
fn a_name_that_goes_up_is_refused() {
    for bad in ["../secret", "a/../../secret", "a/..", "/../secret"] {
        attack(vec![TarEntry::file(bad, "x")], "goes up with `..`");
    }
    attack(vec![TarEntry::file("x", "x").record("path", "../secret")], "goes up with `..`");
    attack(vec![TarEntry::file("a/.wh...", "")], "hides what is no name");
    attack(vec![TarEntry::directory("../root")], "goes up with `..`");
}

#[test]
fn a_link_of_the_same_layer_leads_no_entry_anywhere() {
    for target in ["..", "/", "/tmp", "."] {
        let through = |entry: TarEntry| vec![TarEntry::symlink("way", target), entry];
        let reason = "a symbolic link of the same layer is on the way";
        attack(through(TarEntry::file("way/secret", "x")), reason);
        attack(through(TarEntry::directory("way/deeper/still")), reason);
        attack(through(TarEntry::file("way/.wh.secret", "")), reason);
        attack(through(TarEntry::file("way/.wh..wh..opq", "")), reason);
        attack(through(TarEntry::hard_link("stolen", "way/secret")), reason);
    }
}

#[test]
fn a_hard_link_leads_to_the_layers_own_files_only() {
    attack(vec![TarEntry::hard_link("a", "../secret")], "goes up with `..`");
    attack(vec![TarEntry::hard_link("a", "/etc/passwd")], "what is not in the layer");
    attack(vec![TarEntry::hard_link("a", "missing")], "what is not in the layer");
    attack(vec![TarEntry::hard_link("a", "/")], "leads to the root");
    let directory = vec![TarEntry::directory("d"), TarEntry::hard_link("a", "d")];
    attack(directory, "what is no file");
    attack(vec![TarEntry::file(".wh.x", ""), TarEntry::hard_link("a", "x")], "what is no file");
    attack(vec![TarEntry::file("a", "x"), TarEntry::hard_link("./a", "a")], "leads to itself");
}

#[test]
fn writing_through_a_planted_link_writes_nothing() {
    let ground = Ground::new();
    let secret = ground.directory.path().join("secret");
    ground.unpacked([
        TarEntry::symlink("way", secret.as_os_str().as_bytes()),
        TarEntry::file("way", "mine now"),
        TarEntry::symlink("again", secret.as_os_str().as_bytes()),
        TarEntry::hard_link("same", "again"),
        TarEntry::file("same", "mine now").mode(0o777),
    ]);
    assert_eq!(text(ground.path("way")), "mine now");
    ground.check_outside();
}

#[test]
fn a_file_on_the_way_is_no_directory() {
    attack(vec![TarEntry::file("a", "x"), TarEntry::file("a/b", "x")], "is no directory");
    let full = vec![TarEntry::directory("a"), TarEntry::file("a/b", ""), TarEntry::file("a", "x")];
    attack(full, "it replaces a directory of the same layer");
}

#[test]
fn what_is_not_understood_is_refused() {
    attack(vec![TarEntry::new("holes", b'S')], "files with holes");
    attack(vec![TarEntry::file("holes", "").record("GNU.sparse.major", "1")], "files with holes");
    attack(vec![TarEntry::new("what", b'Z')], "of a kind that is not read");
    attack(vec![TarEntry::file(".", "x")], "stands for the root");
    attack(vec![TarEntry::symlink("a", "")], "leads nowhere");
    attack(vec![TarEntry::file("a".repeat(300), "x")], "longer than 255");
    attack(vec![TarEntry::file("a/".repeat(3000) + "b", "x")], "longer than 4095");
}

#[test]
fn what_is_cut_short_is_damaged() {
    let whole = tar([TarEntry::file("a", vec![1; 5000]), TarEntry::file("b", "x")]);
    for len in [1, 100, 511, 513, 3000, 5500, 5700] {
        let ground = Ground::new();
        let told = refused(ground.unpack(&whole[..len]));
        assert!(told.contains("ends in the middle"), "{len}: {told}");
    }
    let ground = Ground::new();
    let lie = TarEntry { len_bytes: Some(u64::MAX / 3), ..TarEntry::file("a", "x") };
    assert!(refused(ground.unpack(&tar([lie]))).contains("larger than any disk"));
    let lie = TarEntry { len_bytes: Some(1 << 40), ..TarEntry::file("a", "x") };
    assert!(refused(ground.unpack(&tar([lie]))).contains("ends in the middle"));
}

#[test]
fn records_that_lie_about_their_length_are_damaged() {
    for records in [
        "5 a=b\n",
        "999999999999999999999 a=b\n",
        "-1 a=b\n",
        "x",
        "6 ab\n\n",
        "3 \n",
        "9 size=x\n",
    ] {
        let mut pax = TarEntry::new("pax", b'x');
        pax.content = records.as_bytes().to_vec();
        let ground = Ground::new();
        let told = refused(ground.unpack(&tar([pax, TarEntry::file("a", "x")])));
        assert!(told.contains("damaged"), "{records:?}: {told}");
    }
    let ground = Ground::new();
    let nobody = TarEntry::file("a", "").record("uid", u32::MAX.to_string());
    assert!(refused(ground.unpack(&tar([nobody]))).contains("nobody can be"));
    let huge = TarEntry { len_bytes: Some(1 << 32), ..TarEntry::new("pax", b'x') };
    let ground = Ground::new();
    assert!(refused(ground.unpack(&tar([huge]))).contains("longer than 1 MiB"));
    let many = (0..20).map(|_| TarEntry::new("x", b'L')).chain([TarEntry::file("a", "")]);
    assert!(refused(ground.unpack(&tar(many))).contains("too much stands before"));
}

#[test]
fn more_entries_than_the_limit_are_refused_when_the_limit_is_reached() {
    let limits = Limits { entries: 1000, ..Limits::default() };
    let one = tar([TarEntry::new("pipe", b'6')])[..512].to_vec();
    let archive = one.repeat(100_000);
    let ground = Ground::new();
    match ground.unpack_within(&archive, limits) {
        Err(ImageError::TooLarge { limit, .. }) => assert_eq!(limit, "1000 entries"),
        other => panic!("{other:?}"),
    }
}
