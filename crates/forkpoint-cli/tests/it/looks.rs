//! `diff`, `ls`, `cat` and `cp`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
};

use rustix::process::Signal;

use crate::harness::{Home, assert_told, ended, signal};

const FIRST: &str = r#"
mkdir -p /srv/app/src && cd /srv/app
printf 'one\ntwo\nthree\n' > text
printf '#!/bin/sh\n' > run.sh && chmod 755 run.sh
ln -s text link
printf 'a\000b' > binary
echo 'what moves' > src/old
printf x > "no line break"
mkfifo thing
"#;

const SECOND: &str = r#"
cd /srv/app
printf 'one\n2\nthree\nfour' > text
chmod 644 run.sh
ln -sf run.sh link
printf 'a\000c' > binary
mkdir new && mv src/old new/name
rm 'no line break'
rm thing && mkdir thing
: > empty
echo odd > "$(printf 'a\033[31m\nb\377')"
"#;

/// `web` with a snapshot `one`, and changed since.
fn changed() -> Home {
    let home = Home::with_web();
    home.sh("web", FIRST);
    home.ok(["snapshot", "web", "--name", "one"]);
    home.sh("web", SECOND);
    home
}

#[test]
fn diff_tells_what_happened_to_each_file() {
    let home = changed();
    assert_told!("diff", home.ok(["diff", "web"]).told());
    assert_told!("diff_stat", home.ok(["diff", "web", "--stat"]).told());
    assert_told!(
        "diff_name_only",
        home.ok(["diff", "web", "--name-only", "--", "/srv/app/src", "srv/app/new"]).told()
    );
    assert_told!("diff_back", home.ok(["diff", "web", "one", "--", "/srv/app/text"]).told());
    assert_eq!(home.ok(["diff", "one", "one"]).told(), "exit code 0");
    home.ok(["snapshot", "web", "--name", "two"]);
    assert_eq!(home.ok(["diff", "web"]).told(), "exit code 0");
    assert_eq!(home.ok(["diff", "two"]).stdout, home.ok(["diff", "one", "web"]).stdout);
    assert_told!(
        "diff_from_the_beginning",
        home.ok(["diff", "one"]).stdout.lines().take(2).collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn a_patch_is_like_gits() {
    let home = changed();
    assert_told!("diff_patch", home.ok(["diff", "web", "--patch", "--", "/srv/app"]).told());
    let coloured = home.ok(["diff", "web", "-p", "--color=always", "--", "/srv/app/text"]).stdout;
    assert!(coloured.contains("\u{1b}[1m--- a/srv/app/text\u{1b}[0m"), "{coloured:?}");
    assert!(coloured.contains("\u{1b}[32m+2\u{1b}[0m\n"), "{coloured:?}");
}

#[test]
fn a_patch_can_be_applied() {
    let home = changed();
    home.sh("web", "rm /srv/app/a*");
    let (here, after) = (home.path().join("here"), home.path().join("after"));
    home.ok(["cp", "-r", "one:/srv/app/.", here.to_str().unwrap()]);
    home.ok(["cp", "-r", "web:/srv/app/.", after.to_str().unwrap()]);
    let patch = home.ok(["diff", "web", "--patch", "--", "/srv/app"]).stdout;
    fs::write(home.path().join("patch"), patch).unwrap();
    let git = |args: &[&str]| {
        let ran = Command::new("git").args(args).current_dir(&here).output().expect("git");
        assert!(ran.status.success(), "{ran:?}");
    };
    // What is no text is told, and not carried.
    git(&["apply", "--exclude=binary", "../patch"]);
    fs::copy(after.join("binary"), here.join("binary")).unwrap();
    for directory in ["src", "thing"] {
        fs::remove_dir(after.join(directory)).unwrap();
    }
    assert_same(&here, &after);
    let mode = fs::metadata(here.join("run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

fn assert_same(a: &Path, b: &Path) {
    let mut diff = Command::new("diff");
    let found = diff.args(["-r", "--no-dereference"]).args([a, b]).output().expect("diff");
    assert!(found.status.success(), "{found:?}");
}

#[test]
fn diff_as_json_is_stable() {
    let home = changed();
    let found = home.ok(["diff", "one", "web", "--json", "--", "/srv/app/text", "/srv/app/new"]);
    assert_told!("diff_json", found.stdout);
    let odd = home.ok(["diff", "web", "--json", "--", "/srv/app"]).json();
    let paths: Vec<_> = odd["changes"].as_array().unwrap().iter().map(|c| &c["path"]).collect();
    assert!(paths.iter().any(|path| path.is_array()), "{paths:?}");
}

#[test]
fn what_cannot_be_looked_into_is_told() {
    let home = changed();
    home.ok(["create", "--name", "other", "--template", &format!("dir:{}", template(&home))]);
    let mut told = Vec::new();
    for args in [
        &["diff", "wbe"][..],
        &["diff", "web", "tow"],
        &["diff", "web", "other"],
        &["ls", "web:/nothing"],
        &["cat", "web:/srv"],
        &["cat", "web:/srv/app/thing/../../../../nothing"],
        &["cat", "web"],
        &["cp", "web:/srv", "."],
        &["cp", "Cargo.toml", "one:/srv"],
        &["cp", "web:/srv/app/text", "one:/srv"],
    ] {
        let run = home.run(args);
        told.push(format!("$ forkpoint {}\n{}", args.join(" "), run.told()));
    }
    assert_told!("refusals", told.join("\n\n"));
}

fn template(home: &Home) -> String {
    let root = home.path().join("template");
    fs::create_dir(&root).expect("a directory");
    for name in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{name}"), root.join(name)).expect("a link");
    }
    root.to_str().expect("text").to_owned()
}

#[test]
fn ls_lists_without_restoring() {
    let home = changed();
    home.ok(["stop", "web"]);
    assert_told!("ls", home.ok(["ls", "one:/srv/app"]).stdout);
    assert_told!("ls_recursive", home.ok(["ls", "-R", "web:/srv"]).stdout);
    let long = home.ok(["ls", "-la", "one:srv/app"]).stdout;
    let line = |name: &str| long.lines().find(|line| line.ends_with(name)).unwrap().to_owned();
    assert!(line(" run.sh").starts_with("-rwxr-xr-x 0:0 "), "{long}");
    assert!(line(" link -> text").starts_with("lrwxrwxrwx 0:0 "), "{long}");
    assert!(line(" thing").starts_with("prw-r--r-- 0:0 "), "{long}");
    let json = home.ok(["ls", "--json", "one:/srv/app/link"]).json();
    assert_eq!(json["entries"][0]["kind"], "file", "a link is followed: {json}");
    assert_eq!(json["entries"][0]["path"], "/srv/app/text", "{json}");
    assert!(home.ok(["ls", "web"]).stdout.lines().any(|name| name == "etc"));
}

#[test]
fn links_lead_nowhere_outside() {
    let home = Home::with_web();
    let secret = home.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let outside = secret.to_str().unwrap();
    home.sh("web", &format!("ln -s {outside} /srv/out; ln -s / /srv/root; ln -s loop /srv/loop"));
    home.sh("web", "ln -s ../../../../../etc/hostname /srv/up; echo inside > /srv/file");
    home.sh("web", "ln -s /srv/file /srv/in");
    for path in ["web:/srv/out", "web:/srv/loop", &format!("web:/srv/root{outside}")] {
        let run = home.run(["cat", path]);
        assert!(matches!(run.code, Some(2 | 3)) && run.stdout.is_empty(), "{run:?}");
    }
    assert_eq!(
        home.ok(["cat", "web:/srv/in", "web:/srv/root/srv/file"]).stdout,
        "inside\ninside\n"
    );
    let here = home.path().join("here");
    home.ok(["cp", "-r", "web:/srv", here.to_str().unwrap()]);
    assert_eq!(fs::read_link(here.join("out")).unwrap(), secret);
    // A link that is in the way here is replaced or refused, and never written through.
    fs::remove_file(here.join("file")).unwrap();
    symlink(&secret, here.join("file")).unwrap();
    home.ok(["cp", "-r", "web:/srv/.", here.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(here.join("file")).unwrap(), "inside\n");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    home.sh("web", "mkdir /srv/dir; echo new > /srv/dir/secret");
    symlink(home.path(), here.join("dir")).unwrap();
    let run = home.run(["cp", "-r", "web:/srv/.", here.to_str().unwrap()]);
    assert_ne!(run.code, Some(0), "{run:?}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
}

#[test]
fn cp_goes_there_and_back() {
    let home = Home::with_web();
    let from = home.path().join("from");
    fs::create_dir_all(from.join("sub/empty")).unwrap();
    fs::write(from.join("sub/tool"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(from.join("sub/tool"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(from.join("large"), vec![7; 3 << 20]).unwrap();
    symlink("sub/tool", from.join("link")).unwrap();
    let (from, to) = (from.to_str().unwrap(), home.path().join("to"));
    home.ok(["cp", "-r", from, "web:/srv"]);
    assert_eq!(home.sh("web", "/srv/from/link; stat -c %a /srv/from/sub/tool"), "ran\n750\n");
    home.ok(["cp", "-r", from, "web:/srv/other"]);
    home.ok(["cp", "-r", &format!("{from}/."), "web:/srv/other"]);
    assert_eq!(home.sh("web", "ls /srv/other"), "large\nlink\nsub\n");
    // As `cp` does, through a link that is there; where to is the sandbox's own business.
    home.sh(
        "web",
        "cd /srv/other/sub; mv tool /srv/moved; ln -s /srv/moved tool; echo > /srv/moved",
    );
    home.ok(["cp", "-r", &format!("{from}/."), "web:/srv/other"]);
    assert_eq!(home.sh("web", "/srv/moved; readlink /srv/other/sub/tool"), "ran\n/srv/moved\n");
    home.ok(["snapshot", "web", "--name", "one"]);
    home.ok(["cp", "-r", "one:/srv/from", to.to_str().unwrap()]);
    assert_same(Path::new(from), &to);
    let report = home.ok(["cp", "-r", "--json", "one:/srv/from", to.to_str().unwrap()]).json();
    assert_eq!(report["files"], 2, "{report}");
    assert_eq!(report["bytes"], (3 << 20) + 19, "{report}");
    assert!(to.join("from/sub/empty").is_dir(), "into a directory that is there");
    let tool = fs::metadata(to.join("sub/tool")).unwrap().permissions().mode();
    assert_eq!(tool & 0o7777, 0o750);

    assert_eq!(home.run_with_input(["cp", "-", "web:/srv/in"], b"typed").code, Some(0));
    assert_eq!(home.ok(["cp", "web:/srv/in", "-"]).stdout, "typed");
    home.sh("web", "mkdir -p /srv/closed/in; echo 1 > /srv/closed/in/a; chmod 555 /srv/closed");
    let closed = home.path().join("closed");
    home.ok(["cp", "-r", "web:/srv/closed", closed.to_str().unwrap()]);
    assert_eq!(fs::metadata(&closed).unwrap().permissions().mode() & 0o777, 0o555);
    assert!(closed.join("in/a").is_file());
    home.sh("web", "cp /bin/true /srv/root-tool; chmod 4755 /srv/root-tool; mkfifo /srv/fifo");
    let tool = home.path().join("root-tool");
    home.ok(["cp", "web:/srv/root-tool", tool.to_str().unwrap()]);
    assert_eq!(fs::metadata(&tool).unwrap().permissions().mode() & 0o7777, 0o755);
    let skipped = home.ok(["cp", "-r", "web:/srv/fifo", home.path().to_str().unwrap()]);
    assert_eq!(skipped.stderr, "warning: left out /srv/fifo (fifo)\n");
}

#[test]
fn an_interrupted_copy_leaves_no_half_file() {
    let home = Home::with_web();
    home.sh("web", "truncate -s 64G /srv/huge");
    let here = home.path().join("here");
    fs::create_dir(&here).unwrap();
    let copy = home.start(["cp", "web:/srv/huge", here.to_str().unwrap()]);
    while is_empty(&here) {
        std::thread::yield_now();
    }
    signal(&copy, Signal::INT);
    assert_eq!(ended(copy).code, Some(130));
    assert!(is_empty(&here));
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("a directory").next().is_none()
}
