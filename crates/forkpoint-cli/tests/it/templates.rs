//! `template`, and sandboxes from templates.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
    time::Duration,
};

use forkpoint_testkit::image::{Packed, TarEntry, TestImage, archive, tar};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    harness::{Home, Run, Started, assert_told, ended, signal, until},
    servers::{LOGIN, Mood, Registry, log_in, serve_docker},
};

/// The machine's own shell with what it is linked to: an image that runs.
fn image() -> TestImage {
    let mut entries = vec![TarEntry::directory("bin"), TarEntry::directory("etc")];
    for program in ["sh", "cat", "ls", "env"] {
        let path = format!("/usr/bin/{program}");
        entries.push(copy(&format!("bin/{program}"), &path));
        let linked = Command::new("ldd").arg(&path).output().expect("ldd");
        for word in String::from_utf8_lossy(&linked.stdout).split_ascii_whitespace() {
            if word.starts_with('/') {
                entries.push(copy(word, word));
            }
        }
    }
    entries.push(TarEntry::file("etc/motd", "from an image\n"));
    let run = json!({
        "Env": ["PATH=/bin", "A=image", "B=image"], "Cmd": ["cat", "/etc/motd"], "WorkingDir": "/srv",
    });
    TestImage { run, ..TestImage::new(vec![tar(entries)]) }
}

fn copy(name: &str, from: &str) -> TarEntry {
    let mode = fs::metadata(from).expect("a file").permissions().mode() & 0o777;
    TarEntry::file(name.trim_start_matches('/'), fs::read(from).expect("a file")).mode(mode)
}

fn saved(home: &Home, image: &TestImage) -> String {
    let path = home.path().join("image.tar");
    fs::write(&path, archive(&image.saved_old())).expect("a file");
    path.to_str().expect("a path").to_owned()
}

fn names(directory: PathBuf) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn staging(home: &Home) -> Vec<String> {
    names(home.path().join("data/local/images/staging"))
}

fn layers(home: &Home) -> Vec<String> {
    names(home.path().join("data/local/images/layers"))
}

#[test]
fn what_is_added_is_listed_and_what_is_removed_is_gone() {
    let home = Home::new();
    let file = saved(&home, &image());
    let run = home.ok(["template", "add", "app", &file]);
    assert_eq!(run.stdout, "app\n");
    assert!(run.stderr.starts_with("added template `app`, "), "{run:?}");
    let told = home.ok(["template", "ls"]).stdout;
    let rows: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "KIND", "LAYERS", "SIZE", "AGE", "SOURCE"]);
    assert_eq!(rows[1], ["host", "host", "0", "-", "-", "this", "machine"]);
    assert_eq!(&rows[2][..3], ["app", "image", "1"]);
    let listing = home.ok(["template", "ls", "--json"]).json();
    assert_eq!(listing["templates"][1]["cmd"], json!(["cat", "/etc/motd"]));
    assert_eq!(listing["templates"][1]["env"]["A"], "image");
    assert_eq!(listing["total_bytes"], listing["templates"][1]["bytes"]);
    assert_eq!(home.ok(["template", "ls", "-q"]).stdout, "host\napp\n");
    assert_eq!(home.ok(["template", "rm", "app", "--json"]).json()["removed"], json!(["app"]));
    assert_eq!(home.ok(["template", "ls", "-q"]).stdout, "host\n");
    assert_eq!((layers(&home), staging(&home)), (Vec::new(), Vec::new()));
}

#[test]
fn a_command_takes_the_place_of_the_images_command_and_not_of_its_entrypoint() {
    let home = Home::new();
    home.ok(["template", "add", "plain", &saved(&home, &image())]);
    let run = |args: &[&str]| home.ok(["run", "--rm", "--template"].iter().chain(args)).stdout;
    assert_eq!(run(&["plain"]), "from an image\n");
    assert_eq!(run(&["plain", "--", "sh", "-c", "echo $A; pwd"]), "image\n/srv\n");
    assert_eq!(
        run(&["plain", "-e", "A=mine", "-w", "/etc", "--", "sh", "-c", "echo $A$B; pwd"]),
        "mineimage\n/etc\n"
    );

    let mut with_entry = image();
    with_entry.run["Entrypoint"] = json!(["sh", "-c", "echo entry $0 $1"]);
    home.ok(["template", "add", "entry", &saved(&home, &with_entry)]);
    assert_eq!(run(&["entry"]), "entry cat /etc/motd\n");
    assert_eq!(run(&["entry", "--", "a", "b"]), "entry a b\n");
    assert_eq!(run(&["entry", "--entrypoint", "cat", "--", "/etc/motd"]), "from an image\n");
    assert_eq!(run(&["entry", "--entrypoint", "", "--", "ls", "/etc"]), "motd\n");
}

#[test]
fn an_image_as_a_template_is_added_once_under_a_name_that_stays() {
    let home = Home::new();
    let template = format!("--template=archive:{}", saved(&home, &image()));
    home.ok(["create", &template, "--name", "one"]);
    home.ok(["create", &template, "--name", "two"]);
    let name = home.ok(["ps", "--json"]).json()["sandboxes"][0]["template"].clone();
    let name = name.as_str().expect("a template").to_owned();
    assert!(name.starts_with("img-"), "{name}");
    assert_eq!(home.ok(["template", "ls", "-q"]).stdout, format!("host\n{name}\n"));
    assert_eq!(home.sh("one", "echo $A"), "image\n");
    home.ok(["snapshot", "one", "--name", "kept"]);
    let run = home.run(["template", "rm", &name]);
    assert_eq!(run.code, Some(4), "{run:?}");
    assert!(run.stderr.contains("is in use by sandbox `sbx"), "{run:?}");
    home.ok(["rm", "--force", "one", "two"]);
    let run = home.run(["template", "rm", &name]);
    assert_eq!(run.code, Some(4), "{run:?}");
    assert!(run.stderr.contains("is in use by snapshot `kept`\nhint: remove"), "{run:?}");
    home.ok(["restore", "kept", "--name", "again"]);
    assert_eq!(home.sh("again", "cat /etc/motd"), "from an image\n");
    home.ok(["rm", "--force", "again"]);
    home.ok(["delete", "--force", "kept"]);
    home.ok(["template", "rm", &name]);
    assert_eq!(layers(&home), [] as [String; 0]);
}

#[test]
fn a_promoted_snapshot_is_a_template_of_its_own() {
    let home = Home::new();
    home.ok(["template", "add", "app", &saved(&home, &image())]);
    home.ok(["create", "--name", "web", "--template", "app", "--env", "TOKEN=secret"]);
    home.sh("web", "echo ready > /srv/state");
    home.ok(["snapshot", "web", "--name", "good"]);
    let run = home.ok(["template", "promote", "web@latest", "ready"]);
    assert_eq!(run.stdout, "ready\n");
    home.ok(["rm", "--force", "web"]);
    home.ok(["delete", "--force", "good"]);
    home.ok(["template", "rm", "app"]);
    let told =
        home.ok(["run", "--rm", "--template", "ready", "--", "sh", "-c", "cat state; echo $TOKEN"]);
    assert_eq!(told.stdout, "ready\nsecret\n");
    let listing = home.ok(["template", "ls", "--json"]);
    assert!(!listing.stdout.contains("secret"), "an environment often holds secrets: {listing:?}");
    let again = home.run(["template", "promote", "nosuch", "x"]);
    assert_eq!(again.code, Some(3), "{again:?}");
    home.ok(["template", "rm", "ready"]);
    assert_eq!(names(home.path().join("data/local/store/layers")), [] as [String; 0]);
}

#[test]
fn a_snapshot_over_a_live_workspace_is_no_template_and_the_hint_says_what_is() {
    let home = Home::new();
    let dir = home.path().join("project");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("notes"), "mine").expect("a file");
    let dir = dir.to_str().expect("a path");
    home.ok(["create", "--name", "live", "--workspace", dir]);
    home.ok(["snapshot", "live", "--name", "over"]);
    assert_told!(home.run(["template", "promote", "over", "ready"]).told(), @r"
    error: driver `local` cannot take this: snapshot `[snp]` lies over workspace `[home]/project`, which is no part of it: a template needs one of a sandbox without a workspace, or with `--workspace-mode copy`
    hint: `forkpoint create --workspace [home]/project --workspace-mode copy` makes a sandbox whose snapshots hold the files too, and can become templates
    exit code 2
    ");
    home.ok(["create", "--name", "copy", "--workspace", dir, "--workspace-mode", "copy"]);
    home.ok(["snapshot", "copy", "--name", "whole"]);
    home.ok(["template", "promote", "whole", "ready"]);
    assert_told!(home.run(["template", "promote", "whole", "ready"]).told(), @r"
    error: template `ready` is there already, and is something else
    hint: choose another name, or `forkpoint template rm` the one that is there
    exit code 4
    ");
}

/// A rollback puts a sandbox on what the snapshot lay on, whatever it was made from.
#[test]
fn a_template_stays_while_anything_lies_on_it() {
    let home = Home::with_web();
    home.sh("web", "echo ready > /srv/state");
    home.ok(["snapshot", "web", "--name", "one"]);
    home.ok(["template", "promote", "one", "ready"]);
    home.ok(["create", "--name", "next", "--template", "ready"]);
    home.ok(["snapshot", "next", "--name", "two"]);
    home.ok(["create", "--name", "other"]);
    home.ok(["rollback", "other", "two"]);
    home.ok(["rm", "--force", "web", "next"]);
    home.ok(["delete", "--force", "one", "two"]);
    let run = home.run(["template", "rm", "ready"]);
    assert_eq!(run.code, Some(4), "{run:?}");
    assert!(run.stderr.contains("is in use by sandbox"), "{run:?}");
    home.ok(["snapshot", "other", "--name", "three"]);
    home.ok(["rm", "--force", "other"]);
    let run = home.run(["template", "rm", "ready"]);
    assert_eq!(run.code, Some(4), "{run:?}");
    assert!(run.stderr.contains("is in use by snapshot `three`"), "{run:?}");
    home.ok(["restore", "three", "--name", "again"]);
    assert_eq!(home.sh("again", "cat /srv/state"), "ready\n");
    home.ok(["rm", "--force", "again"]);
    home.ok(["delete", "--force", "three"]);
    home.ok(["template", "rm", "ready"]);
    assert_eq!(names(home.path().join("data/local/store/layers")), [] as [String; 0]);
}

#[test]
fn mistakes_name_the_thing_and_the_way_out() {
    let home = Home::new();
    let told = |args: &[&str]| home.run(args).told();
    assert_told!(told(&["create", "--template=nosuch", "--name=x"]), @r"
    error: failed to create sandbox `x`: there is no template `nosuch`
    hint: a template is `host`, this machine's own system, `dir:/PATH`, or what `forkpoint template ls` lists; `forkpoint template add NAME SOURCE` makes one of an image
    exit code 3
    ");
    assert_told!(told(&["template", "rm", "nosuch"]), @r"
    error: there is no template `nosuch`
    hint: `forkpoint template ls` lists the templates
    exit code 3
    ");
    assert_told!(told(&["template", "add", "app", "/nonexistent/image.tar"]), @r"
    error: there is no file `/nonexistent/image.tar`
    hint: an image is `oci:PATH`, `archive:FILE`, `docker-daemon:IMAGE`, `registry:IMAGE`, or a path
    exit code 3
    ");
    assert_told!(told(&["template", "add", "host", "/nonexistent/image.tar"]), @r"
    error: `host` cannot be the name of a template: it means something already
    hint: an image is `oci:PATH`, `archive:FILE`, `docker-daemon:IMAGE`, `registry:IMAGE`, or a path
    exit code 2
    ");
    let text = home.path().join("notes");
    fs::write(&text, "not an image").expect("a file");
    assert_told!(told(&["template", "add", "app", text.to_str().expect("a path")]), @r"
    error: `[home]/notes` cannot be read as an image: it is no archive
    hint: an image is `oci:PATH`, `archive:FILE`, `docker-daemon:IMAGE`, `registry:IMAGE`, or a path
    exit code 2
    ");
    let foreign = TestImage { architecture: "s390x".to_owned(), ..image() };
    let told_foreign = told(&["template", "add", "app", &saved(&home, &foreign)]);
    assert!(
        told_foreign.contains("the image is for linux/s390x, and this machine is"),
        "{told_foreign}"
    );
    assert!(told_foreign.ends_with("exit code 5"), "{told_foreign}");
    let mut bad = image();
    bad.layers = vec![tar([TarEntry::file("../../etc/cron.d/evil", "x")])];
    let told_bad = told(&["template", "add", "app", &saved(&home, &bad)]);
    assert!(told_bad.contains("goes up with `..`"), "{told_bad}");
}

#[test]
fn an_image_of_docker_comes_through_its_socket() {
    let home = Home::new();
    let socket = home.path().join("docker.sock");
    let sent = serve_docker(&socket, &image());
    let host = format!("unix://{}", socket.display());
    let add = |source: &str, host: &str| {
        let mut command = home.command(["template", "add", "app", source]);
        Run::of(command.env("DOCKER_HOST", host).output().expect("the binary starts"))
    };
    assert_eq!(add("docker-daemon:app:v1", &host).code, Some(0));
    assert_eq!(home.ok(["run", "--rm", "--template", "app"]).stdout, "from an image\n");
    assert_eq!(add("docker-daemon:app:v1", &host).code, Some(0));
    assert_eq!(sent.load(Ordering::Relaxed), 1, "what is there is not sent again");
    let missing = add("docker-daemon:other", &host);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    let odd = add("docker-daemon:odd", &host);
    assert!(odd.stderr.contains("it answers 500: out of breath"), "{odd:?}");
    let far = add("docker-daemon:app:v1", "tcp://10.0.0.1:2375");
    assert!(far.stderr.contains("only `unix://…` can be asked"), "{far:?}");
    let nobody = add("docker-daemon:app:v1", "unix:///nonexistent/docker.sock");
    assert!(nobody.stderr.contains("does not answer"), "{nobody:?}");
    for bad in ["docker-daemon:a b", "docker-daemon:../x", "docker-daemon:x\r\nHost: y"] {
        assert!(!add(bad, &host).stderr.is_empty(), "{bad:?}");
    }
}

fn pull(home: &Home, source: &str, config: &Path) -> Run {
    let mut command = home.command(["template", "add", "app", source]);
    Run::of(command.env("DOCKER_CONFIG", config).output().expect("the binary starts"))
}

#[test]
fn an_image_of_a_registry_comes_with_the_login_that_docker_has() {
    let home = Home::new();
    let image = TestImage { packed: Packed::Gzip, ..image() };
    let registry = Registry::serve(&image, Mood::Good);
    let nobody = home.path().join("nobody");
    let denied = pull(&home, &registry.image(), &nobody);
    assert_eq!(denied.code, Some(6), "{denied:?}");
    assert!(denied.stderr.contains("`docker login` writes one down"), "{denied:?}");

    let config = home.path().join("docker");
    log_in(&config, &registry.host);
    let done = pull(&home, &registry.image(), &config);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(home.ok(["run", "--rm", "--template", "app"]).stdout, "from an image\n");
    let sent = registry.blobs_sent();
    assert_eq!(pull(&home, &registry.image(), &config).code, Some(0));
    assert_eq!(registry.blobs_sent(), sent + 1, "only the configuration is fetched again");
    let missing = pull(&home, &registry.image().replace("v1", "v9"), &config);
    assert_eq!(missing.code, Some(3), "{missing:?}");
}

#[test]
fn a_login_may_be_kept_by_a_helper() {
    let home = Home::new();
    let registry = Registry::serve(&image(), Mood::Good);
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("a directory");
    let helper = bin.join("docker-credential-test");
    let script = "#!/bin/sh\nread host\n[ \"$1\" = get ] && echo \"$host\" | grep -q 127.0.0.1 && \
                  echo '{\"Username\": \"me\", \"Secret\": \"secret\"}'\n";
    fs::write(&helper, script).expect("a file");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).expect("a mode");
    let config = home.path().join("docker");
    fs::create_dir(&config).expect("a directory");
    let text = json!({"credHelpers": {&registry.host: "test"}, "auths": {}});
    fs::write(config.join("config.json"), text.to_string()).expect("a file");
    let mut command = home.command(["template", "add", "app", &registry.image()]);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
    command.env("DOCKER_CONFIG", &config).env("PATH", path);
    let run = Run::of(command.output().expect("the binary starts"));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.stderr.contains(LOGIN) && !run.stderr.contains("secret"), "{run:?}");
}

#[test]
fn a_work_directory_that_the_image_lacks_is_made_for_its_user() {
    let home = Home::new();
    let mut image = image();
    image.run["User"] = json!("7:7");
    image.run["WorkingDir"] = json!("deep/x/../place");
    home.ok(["template", "add", "app", &saved(&home, &image)]);
    let run = home.ok(["run", "--template", "app", "--", "sh", "-c", "pwd; ls -ldn ."]);
    let (at, listed) = run.stdout.split_once('\n').unwrap_or_default();
    assert_eq!(at, "/deep/place");
    assert!(listed.starts_with("drwxr-xr-x 2 0 0 "), "{listed}");
}

#[test]
fn a_registry_that_lies_leaves_nothing() {
    let home = Home::new();
    let registry = Registry::serve(&image(), Mood::Lies);
    let config = home.path().join("docker");
    log_in(&config, &registry.host);
    let run = pull(&home, &registry.image(), &config);
    assert_eq!(run.code, Some(7), "{run:?}");
    assert!(run.stderr.contains("is not what its digest says"), "{run:?}");
    assert_eq!((layers(&home), staging(&home)), (Vec::new(), Vec::new()));
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing() {
    let home = Home::new();
    let registry = Registry::serve(&image(), Mood::Slow);
    let config = home.path().join("docker");
    log_in(&config, &registry.host);
    let mut command = home.command(["template", "add", "app", &registry.image()]);
    command.env("DOCKER_CONFIG", &config);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = Started::spawn(&mut command);
    assert!(until(|| registry.blobs_sent() > 1 && !staging(&home).is_empty()));
    signal(&child, Signal::INT);
    let run = ended(child);
    assert_eq!(run.code, Some(130), "{run:?}");
    assert_eq!((layers(&home), staging(&home)), (Vec::new(), Vec::new()));
    assert_eq!(home.ok(["template", "ls", "-q"]).stdout, "host\n");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the moment of death is what varies")]
fn one_that_is_killed_while_adding_leaves_all_of_a_template_or_nothing() {
    let home = Home::new();
    let files = (0..3000).map(|number| TarEntry::file(format!("etc/{number}"), vec![7; 4000]));
    let mut large = image();
    large.layers.push(tar(files));
    let file = saved(&home, &large);
    for moment in 0..12 {
        let mut child = home.start(["template", "add", "app", &file]);
        std::thread::sleep(Duration::from_millis(20 * moment));
        let _ = child.kill();
        let _ = child.wait();
        let listed = home.ok(["template", "ls", "-q"]).stdout;
        if listed.contains("app") {
            let count = "ls /etc | cat | { n=0; while read x; do n=$((n+1)); done; echo $n; }";
            let told =
                home.ok(["run", "--rm", "--template", "app", "--", "sh", "-c", count]).stdout;
            assert_eq!(told, "3001\n");
            home.ok(["template", "rm", "app"]);
        }
    }
    home.ok(["template", "add", "app", &file]);
    assert_eq!((layers(&home).len(), staging(&home)), (2, Vec::new()));
}
