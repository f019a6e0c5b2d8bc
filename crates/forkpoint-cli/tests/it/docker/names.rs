//! A container by its own name: what adopts it, what does not, and which one is meant.

use super::Dock;

#[test]
fn a_container_is_a_sandbox_right_away() {
    let dock = Dock::new();
    let volume = format!("{}:/data", dock.name("data"));
    dock.start("web", &["-v", &volume, "-e", "MODE=live"]);
    dock.sh("web", "echo precious > /data/db; mkdir -p /srv/www; echo page > /srv/www/index");
    let web = dock.reference("web");

    let told = dock.ok(&["validate", &web]).stdout;
    assert!(told.starts_with("yes: a snapshot of files"), "{told}");
    assert_eq!(dock.ok(&["list", "--sandbox", &web]).stdout, "");
    assert_eq!(dock.ok(&["ls", &format!("{web}:/srv/www")]).stdout, "index\n");
    assert_eq!(dock.ok(&["exec", &web, "--", "printenv", "MODE"]).stdout, "live\n");
    assert!(dock.ids().is_empty(), "who only looks adopts nothing");

    let first = dock.ok(&["snapshot", &web, "--name", &dock.name("good")]).id().to_owned();
    assert_eq!(dock.ids().len(), 1);
    let listed = dock.ok(&["ps", "--json"]).json();
    let row = &listed["sandboxes"][0];
    assert_eq!((&row["adopted"], &row["driver"]), (&true.into(), &"docker".into()));
    assert_eq!(row["native_name"], dock.name("web").as_str());
    assert!(dock.ok(&["ps"]).stdout.contains("NATIVE"));

    dock.sh("web", "rm -r /data/db /srv/www; echo new > /data/other");
    let told = dock.ok(&["diff", &web, "--name-only"]).stdout;
    assert!(told.contains("/srv/www/index") && told.contains("/data/db"), "{told}");
    let before = dock.inspect("web");
    let back = dock.ok(&["rollback", &web]);
    assert!(back.stderr.contains("is back at"), "{back:?}");
    assert_eq!(dock.sh("web", "cat /data/db /srv/www/index; ls /data"), "precious\npage\ndb");
    let previous = format!("name=forkpoint-previous-{}", dock.ids()[0]);
    assert_eq!(dock.docker(["ps", "-aq", "--filter", &previous]), "", "the old one is gone");
    let after = dock.inspect("web");
    for key in ["Env", "Cmd", "Labels"] {
        let plain = |value: &serde_json::Value| match key {
            "Labels" => value["Config"][key]["test"].clone(),
            key => value["Config"][key].clone(),
        };
        assert_eq!(plain(&before), plain(&after), "{key}");
    }

    dock.ok(&["snapshot", &web]);
    assert_eq!(dock.ids().len(), 1, "rolled back, it is the same sandbox");
    let shown = dock.ok(&["show", &format!("{web}@2"), "--json"]).json();
    assert_eq!(shown["id"], first.as_str());
    let tree = dock.ok(&["log", &web]).stdout;
    assert_eq!(tree.lines().count(), 2, "{tree}");
    let copied = dock.ok(&["cp", &format!("{web}:/data/db"), "-"]).stdout;
    assert_eq!(copied, "precious\n");
}

#[test]
fn an_id_and_its_beginning_mean_the_container_too() {
    let dock = Dock::new();
    let id = dock.start("web", &[]);
    let by_id = dock.ok(&["snapshot", &format!("docker:{id}")]).id().to_owned();
    let by_prefix = dock.ok(&["snapshot", &format!("docker:{}", &id[..12])]).id().to_owned();
    assert_ne!(by_id, by_prefix);
    assert_eq!(dock.ids().len(), 1);
    let listed = dock.ok(&["list", "-q", "--sandbox", &dock.reference("web")]).stdout;
    assert_eq!(listed.lines().collect::<Vec<_>>(), [by_prefix.as_str(), by_id.as_str()]);
}

#[test]
fn what_was_made_anew_under_the_same_name_is_another() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    dock.sh("web", "echo old > /note");
    let old = dock.ok(&["snapshot", &web]).id().to_owned();
    dock.docker(["rm", "-f", &dock.name("web")]);
    let latest = dock.ok(&["show", &format!("{web}@latest"), "--json"]).json();
    assert_eq!(latest["id"], old.as_str(), "it is gone, and what was kept of it is not");

    dock.start("web", &[]);
    let none = dock.run(&["show", &format!("{web}@latest")]);
    assert_eq!(none.code, Some(3), "{none:?}");
    let new = dock.ok(&["snapshot", &web, "--json"]).json();
    let shown = dock.ok(&["show", &old, "--json"]).json();
    assert_ne!(new["sandbox"], shown["sandbox"]);
    assert_eq!(new["parent"], serde_json::Value::Null);
}

#[test]
fn switches_work_on_any_container_and_forgetting_leaves_it() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    for (verb, state) in
        [("pause", "paused"), ("resume", "running"), ("stop", "exited"), ("start", "running")]
    {
        dock.ok(&[verb, &web]);
        assert_eq!(dock.inspect("web")["State"]["Status"], state, "{verb}");
    }
    dock.ok(&["pause", &web]);
    dock.ok(&["snapshot", &web]);
    assert_eq!(dock.inspect("web")["State"]["Status"], "paused", "it stays as its user left it");
    dock.ok(&["rm", "--force", &web]);
    assert!(dock.ids().is_empty());
    assert_eq!(dock.inspect("web")["State"]["Status"], "paused", "forgotten, not destroyed");
    let again = dock.run(&["rm", &web]);
    assert_eq!(again.code, Some(3), "{again:?}");
}

#[test]
fn what_is_no_container_is_told_with_the_way_out() {
    let dock = Dock::new();
    let nobody = dock.reference("nobody");
    for verb in ["snapshot", "validate", "stop", "rollback", "fork"] {
        let run = dock.run(&[verb, &nobody]);
        assert_eq!(run.code, Some(3), "{run:?}");
        assert!(run.stderr.contains(&dock.name("nobody")), "{run:?}");
    }
    let run = dock.run(&["snapshot", &nobody]);
    assert!(run.stderr.contains("docker ps -a"), "{run:?}");
    let run = dock.run(&["snapshot", "podman:web"]);
    assert_eq!(run.code, Some(5), "{run:?}");
}

#[test]
fn processes_are_refused_with_the_reason_before_anything_happens() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    dock.docker(["stop", &dock.name("web")]);
    let run = dock.run(&["snapshot", &web, "--full"]);
    assert_eq!(run.code, Some(5), "{run:?}");
    assert!(run.stderr.contains("nothing runs in it"), "{run:?}");
    assert!(dock.ids().is_empty(), "it was not even adopted");
    let validated = dock.run(&["validate", &web, "--full"]);
    assert_eq!(validated.code, Some(1), "{validated:?}");
    dock.ok(&["snapshot", &web]);
}

#[test]
fn what_would_be_left_out_is_told() {
    let dock = Dock::new();
    let here = dock.home.path().join("here");
    std::fs::create_dir(&here).expect("a directory");
    let bind = format!("{}:/here", here.display());
    dock.start("web", &["-v", &bind, "--tmpfs", "/scratch"]);
    let told = dock.ok(&["validate", &dock.reference("web")]).stdout;
    assert!(told.contains("note: `/here` is `") && told.contains("mounted again"), "{told}");
    assert!(told.contains("`/scratch` is in memory (tmpfs)"), "{told}");
}

/// What bash offers, which takes a colon for the end of a word.
fn offered(dock: &Dock, line: &str, words: &[&str]) -> Vec<String> {
    let script = dock.home.path().join("completion.bash");
    std::fs::write(&script, dock.ok(&["completions", "bash"]).stdout).expect("the script");
    let ask = r#"source "$1"; COMP_LINE="$2"; COMP_POINT=${#COMP_LINE}; shift 2
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _forkpoint_with_names "$1" "${@: -1}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", ask, "bash"]).arg(script).arg(line).arg(env!("CARGO_BIN_EXE_forkpoint"));
    bash.args(words).env("FORKPOINT_DATA_DIR", dock.home.path().join("data"));
    bash.env("DOCKER_HOST", dock.engine.host()).env_remove("FORKPOINT_CONFIG");
    let run = crate::harness::Run::of(bash.output().expect("bash runs"));
    assert_eq!(run.stderr, "", "{line}");
    run.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn names_of_containers_are_completed() {
    let dock = Dock::new();
    dock.start("web", &[]);
    dock.start("work", &[]);
    let ask = |typed: &str| dock.ok(&["__complete", "--", "snapshot", typed]).stdout;
    let (web, work) = (dock.reference("web"), dock.reference("work"));
    assert_eq!(ask(&dock.reference("w")), format!("{web}\n{work}\n"));
    assert!(ask("do").contains(&web), "the word itself is not typed yet");
    assert_eq!(ask("nothing"), "");
    let typed = dock.reference("we");
    let line = format!("forkpoint exec {typed}");
    let words = ["exec", "docker", ":", &dock.name("we")];
    assert_eq!(offered(&dock, &line, &words), [dock.name("web")]);
    assert_eq!(offered(&dock, &line, &["exec", &typed]), [dock.name("web")]);
}
