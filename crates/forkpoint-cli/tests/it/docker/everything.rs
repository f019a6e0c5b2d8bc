//! What else is in a container than its files: what the engine makes for it, memory, processes; and
//! where its engine is.

use std::process::Command;

use super::Dock;
use crate::harness::{Run, until};

#[test]
fn what_was_written_into_files_that_the_engine_makes_is_not_lost() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    let look = "cat /etc/resolv.conf /etc/hostname; grep api /etc/hosts";
    let edit = "echo nameserver 10.9.9.9 > /etc/resolv.conf; echo renamed > /etc/hostname; \
                echo 10.1.1.1 api >> /etc/hosts";
    dock.sh("web", edit);
    let seen = dock.sh("web", look);
    assert_eq!(seen, "nameserver 10.9.9.9\nrenamed\n10.1.1.1 api");
    let kept = dock.ok(&["snapshot", &web]).id().to_owned();
    dock.ok(&["restore", &kept, "--name", &dock.name("copy")]);
    assert_eq!(dock.sh("copy", look), seen);
    dock.sh(
        "web",
        "echo > /etc/resolv.conf; echo > /etc/hostname; echo 127.0.0.1 localhost > /etc/hosts",
    );
    dock.ok(&["rollback", &web, &kept]);
    assert_eq!(dock.sh("web", look), seen);
}

#[test]
fn what_is_in_memory_is_kept_if_that_is_asked_for() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &["--tmpfs", "/scratch"]);
    dock.sh("web", "echo quick > /scratch/a; echo shared > /dev/shm/b");
    let plain = dock.ok(&["snapshot", &web]).id().to_owned();
    let kept = dock.ok(&["snapshot", &web, "--tmpfs"]).id().to_owned();
    for (snapshot, name, seen) in [(plain, "bare", ""), (kept, "copy", "quick\nshared")] {
        dock.ok(&["restore", &snapshot, "--name", &dock.name(name)]);
        assert_eq!(dock.sh(name, "cat /scratch/* /dev/shm/* 2>/dev/null; true"), seen, "{name}");
    }
}

#[test]
fn processes_go_on_in_a_copy_where_the_engine_can() {
    let dock = Dock::new();
    let web = dock.reference("web");
    let script = "trap 'exit 0' TERM; read who < /proc/sys/kernel/random/uuid; i=0; \
                  while :; do i=$((i+1)); echo $i $who > /new; mv /new /n; sleep 0.05; done";
    dock.start_running("web", &[], script);
    let look = |of: &str| {
        let told = dock.sh(of, "cat /n 2>/dev/null; true");
        told.split_once(' ').map(|(count, who)| (count.parse().unwrap_or(0), who.to_owned()))
    };
    assert!(until(|| look("web").is_some_and(|(count, _)| count > 3u64)), "it counts");
    let started = dock.inspect("web")["State"]["StartedAt"].clone();
    let (before, who) = look("web").expect("it counts");
    let full = dock.ok(&["snapshot", &web, "--full"]).id().to_owned();
    assert_eq!(dock.ok(&["show", &full, "--json"]).json()["kind"], "full");
    assert_eq!(dock.inspect("web")["State"]["StartedAt"], started, "the source never ended");
    dock.ok(&["restore", &full, "--name", &dock.name("copy")]);
    let on = || look("copy").is_some_and(|(count, same)| count > before + 2 && same == who);
    assert!(until(on), "{:?} after {before} {who}", look("copy"));
}

#[test]
fn an_engine_is_found_by_its_context() {
    let dock = Dock::new();
    dock.start("web", &[]);
    let config = dock.home.path().join("docker");
    let name = dock.name("context");
    let mut create = Command::new("docker");
    create.args(["context", "create", &name, "--docker", &format!("host={}", dock.engine.host())]);
    let made = create.env("DOCKER_CONFIG", &config).env_remove("DOCKER_HOST").output();
    assert!(made.is_ok_and(|output| output.status.success()), "a context is made");
    let snapshot = |context: &str| {
        let mut command = dock.home.command(["snapshot", &dock.reference("web")]);
        command.env_remove("DOCKER_HOST").env("DOCKER_CONFIG", &config);
        Run::of(command.env("DOCKER_CONTEXT", context).output().expect("the binary starts"))
    };
    let run = snapshot(&name);
    assert_eq!(run.code, Some(0), "{run:?}");
    let missing = snapshot("nobody");
    assert!(missing.code != Some(0) && missing.stderr.contains("nobody"), "{missing:?}");
}

#[test]
fn a_list_is_of_a_container_by_its_name_or_its_id() {
    let dock = Dock::new();
    let id = dock.start("web", &[]);
    dock.start("other", &[]);
    let of_web = dock.ok(&["snapshot", &dock.reference("web")]).id().to_owned();
    dock.ok(&["snapshot", &dock.reference("other")]);
    for container in
        [dock.reference("web"), format!("docker:{id}"), format!("docker:{}", &id[..12])]
    {
        let listed = dock.ok(&["list", "-q", "--container", &container]).stdout;
        assert_eq!(listed.trim_end(), of_web, "{container}");
    }
}
