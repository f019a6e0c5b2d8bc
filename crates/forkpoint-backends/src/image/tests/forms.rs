//! What good archives hold.

use std::process::Command;

use super::*;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn files_have_their_content_mode_owner_and_time() {
    let ground = Ground::new();
    let done = ground.unpacked([
        TarEntry::directory("./a/").mode(0o1777),
        TarEntry::file("./a/tool", "#!/bin/sh\n").mode(0o4755).owner(1000, 2000),
        TarEntry::file("/b", "absolute").record("mtime", "1600000000.123456789"),
        TarEntry::file("empty", ""),
        TarEntry::new("pipe", b'6').mode(0o620),
    ]);
    assert_eq!((done.entries, done.bytes), (5, 18));
    let tool = fs::metadata(ground.path("a/tool")).unwrap();
    assert_eq!(tool.mode() & 0o7777, 0o4755);
    if is_root() {
        assert_eq!((tool.uid(), tool.gid()), (1000, 2000));
    }
    assert_eq!(tool.mtime(), 1_700_000_000);
    let b = fs::metadata(ground.path("b")).unwrap();
    assert_eq!((b.mtime(), b.mtime_nsec()), (1_600_000_000, 123_456_789));
    let a = fs::metadata(ground.path("a")).unwrap();
    assert_eq!((a.mode() & 0o7777, a.mtime()), (0o1777, 1_700_000_000), "set after what is in it");
    assert_eq!(fs::symlink_metadata(ground.path("pipe")).unwrap().mode() & 0o7777, 0o620);
    assert_eq!(text(ground.path("empty")), "");
}

#[test]
fn a_directory_that_is_closed_to_its_owner_is_filled_all_the_same() {
    let ground = Ground::new();
    ground.unpacked([
        TarEntry::directory("closed").mode(0o000),
        TarEntry::file("closed/in", "x"),
        TarEntry::directory("closed/deeper").mode(0o500),
        TarEntry::file("closed/deeper/in", "y"),
    ]);
    let mode = |name: &str| fs::symlink_metadata(ground.path(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("closed"), 0o000);
    if is_root() {
        assert_eq!(text(ground.path("closed/deeper/in")), "y");
        assert_eq!(mode("closed/deeper"), 0o500);
    }
    fs::set_permissions(ground.path("closed"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    let deeper = ground.path("closed/deeper");
    fs::set_permissions(deeper, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn links_hard_and_symbolic_are_kept_across_directories() {
    let ground = Ground::new();
    ground.unpacked([
        TarEntry::directory("bin"),
        TarEntry::file("bin/perl", "perl"),
        TarEntry::directory("lib"),
        TarEntry::hard_link("lib/perl5", "./bin/perl"),
        TarEntry::symlink("sbin", "bin"),
        TarEntry::symlink("away", "/etc/passwd"),
        TarEntry::symlink("up", "../../../../etc/passwd"),
        TarEntry::hard_link("same", "away"),
    ]);
    let (one, two) =
        (fs::metadata(ground.path("bin/perl")), fs::metadata(ground.path("lib/perl5")));
    assert_eq!(one.unwrap().ino(), two.unwrap().ino());
    for (link, target) in [
        ("sbin", "bin"),
        ("away", "/etc/passwd"),
        ("up", "../../../../etc/passwd"),
        ("same", "/etc/passwd"),
    ] {
        assert_eq!(fs::read_link(ground.path(link)).unwrap(), Path::new(target));
    }
}

#[test]
fn long_names_and_odd_names_are_kept() {
    let ground = Ground::new();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(250));
    let linked = "t".repeat(300);
    let pax = format!("pax/{}", "p".repeat(240));
    ground.unpacked([
        TarEntry::file(&long, "gnu"),
        TarEntry::symlink("link", &linked),
        TarEntry::file("short", "pax").record("path", &pax),
        TarEntry::file(b"odd\xff\xfe\n", "odd"),
    ]);
    assert_eq!(text(ground.path(&long)), "gnu");
    assert_eq!(text(ground.path(&pax)), "pax");
    assert_eq!(fs::read_link(ground.path("link")).unwrap(), Path::new(&linked));
    assert_eq!(text(ground.root().join(name(b"odd\xff\xfe\n"))), "odd");
}

#[test]
fn attributes_are_kept_but_for_those_of_overlayfs_itself() {
    let ground = Ground::new();
    let marked = ground.marks.as_str();
    let done = ground.unpacked([
        TarEntry::file("a", "x")
            .record("SCHILY.xattr.user.note", "kept")
            .record(format!("SCHILY.xattr.{marked}.overlay.redirect"), "/etc")
            .record("SCHILY.xattr.security.selinux", "label"),
        TarEntry::directory("d").record(format!("SCHILY.xattr.{marked}.overlay.opaque"), "y"),
    ]);
    let mut value = [0; 16];
    let len = lgetxattr(ground.path("a"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"kept");
    let redirect = format!("{marked}.overlay.redirect");
    assert!(lgetxattr(ground.path("a"), redirect.as_str(), &mut value[..]).is_err());
    assert!(!ground.is_opaque("d"));
    assert_eq!(done.attributes, 3);
}

#[test]
fn a_deleted_name_is_a_whiteout_and_a_replaced_directory_is_opaque() {
    let ground = Ground::new();
    ground.unpacked([
        TarEntry::directory("etc"),
        TarEntry::file("etc/.wh.passwd", ""),
        TarEntry::file("new/place/.wh.gone", ""),
        TarEntry::directory("var"),
        TarEntry::file("var/.wh..wh..opq", ""),
        TarEntry::file("var/kept", "new"),
        TarEntry::file(".wh..wh.plnk", ""),
    ]);
    assert!(ground.is_whiteout("etc/passwd") && ground.is_whiteout("new/place/gone"));
    assert!(ground.is_opaque("var") && !ground.is_opaque("etc"));
    assert_eq!(text(ground.path("var/kept")), "new");
    let names = fs::read_dir(ground.root()).unwrap().count();
    assert_eq!(names, 3, "no `.wh.` is left");
}

#[test]
fn what_is_hidden_and_made_again_hides_all_that_was_below() {
    let ground = Ground::new();
    ground.unpacked([
        TarEntry::file(".wh.first", ""),
        TarEntry::directory("first"),
        TarEntry::directory("second"),
        TarEntry::file("second/in", ""),
        TarEntry::file(".wh.second", ""),
        TarEntry::file(".wh.third", ""),
        TarEntry::file("third", "a file"),
    ]);
    assert!(ground.is_opaque("first") && ground.is_opaque("second"));
    assert!(ground.path("second/in").exists());
    assert_eq!(text(ground.path("third")), "a file");
}

#[test]
fn the_last_of_two_entries_with_one_name_counts() {
    let ground = Ground::new();
    ground.unpacked([
        TarEntry::file("a", "first, and longer"),
        TarEntry::file("a", "second"),
        TarEntry::symlink("b", "a"),
        TarEntry::file("b", "a file of its own"),
        TarEntry::file("c", "x"),
        TarEntry::directory("c"),
        TarEntry::directory("d"),
        TarEntry::file("d", "was an empty directory"),
    ]);
    assert_eq!(text(ground.path("a")), "second", "nothing was written through the link");
    assert_eq!(text(ground.path("b")), "a file of its own");
    assert!(ground.path("c").is_dir() && ground.path("d").is_file());
}

#[test]
fn devices_are_left_out_and_counted() {
    let ground = Ground::new();
    let done = ground.unpacked([
        TarEntry::directory("dev"),
        TarEntry::new("dev/null", b'3'),
        TarEntry::new("dev/sda", b'4'),
        TarEntry::new("var/chroot/dev/zero", b'3'),
    ]);
    assert_eq!(done.devices, 3);
    assert_eq!(fs::read_dir(ground.path("dev")).unwrap().count(), 0);
}

/// Another program's archives, in all its dialects.
#[test]
fn what_gnu_tar_writes_is_unpacked_as_it_was() {
    let from = TempDir::new().unwrap();
    let tree = from.path().join("tree");
    let long = "l".repeat(150);
    fs::create_dir_all(tree.join("a/b").join(&long)).unwrap();
    fs::write(tree.join("a/one"), vec![7; 100_000]).unwrap();
    fs::hard_link(tree.join("a/one"), tree.join("a/b/two")).unwrap();
    fs::write(tree.join("a/b").join(&long).join("deep"), "deep").unwrap();
    std::os::unix::fs::symlink("../a", tree.join("a/link")).unwrap();
    for format in ["gnu", "pax", "oldgnu"] {
        let archive = from.path().join(format);
        let mut tar = Command::new("tar");
        tar.arg(format!("--format={format}")).arg("-C").arg(&tree).arg("-cf").arg(&archive);
        assert!(tar.arg(".").status().unwrap().success());
        let ground = Ground::new();
        ground.unpack(&fs::read(archive).unwrap()).unwrap();
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]).arg(&tree).arg(ground.root());
        let same = diff.output().unwrap();
        assert!(same.status.success(), "{format}: {}", String::from_utf8_lossy(&same.stdout));
        let time = |path: PathBuf| fs::metadata(path).unwrap().mtime();
        assert_eq!(time(tree.join("a/one")), time(ground.path("a/one")), "{format}");
        assert_eq!(fs::metadata(ground.path("a/b/two")).unwrap().nlink(), 2, "{format}");
    }
}

/// Of a default access list, everything that is made below a directory inherits.
#[test]
fn what_a_directory_gives_its_children_is_not_given_to_those_that_are_unpacked() {
    if !rustix::process::geteuid().is_root() {
        return; // No image's access lists are kept without root.
    }
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries = [(1, 7, !0), (2, 5, 1000), (4, 4, !0), (0x10, 5, !0), (0x20, 0, !0)];
    let entries = entries.map(|(tag, perm, id)| entry(tag, perm, id)).concat();
    let list = [&2u32.to_le_bytes()[..], &entries].concat();
    let ground = Ground::new();
    ground.unpacked([
        TarEntry::directory("d").record("SCHILY.xattr.system.posix_acl_default", &list),
        TarEntry::directory("d/below"),
        TarEntry::file("d/file", "x"),
    ]);
    let mut value = [0; 64];
    let attribute =
        |name: &str, which: &str, value: &mut [u8]| lgetxattr(ground.path(name), which, value);
    let len = attribute("d", "system.posix_acl_default", &mut value).unwrap();
    assert_eq!(value[..len], list);
    for name in ["d/below", "d/file"] {
        for which in ["system.posix_acl_access", "system.posix_acl_default"] {
            assert!(attribute(name, which, &mut value).is_err(), "{name} {which}");
        }
    }
}
