//! Copies of containers, with what was asked for them.

use serde_json::json;

use super::{Dock, IMAGE};

#[test]
fn a_copy_is_what_its_source_was_but_for_what_is_asked() {
    let dock = Dock::new();
    let (front, web) = (dock.network("front"), dock.reference("web"));
    let volume = format!("{}:/data", dock.name("data"));
    let options = [
        "--network",
        &front,
        "-p",
        "127.0.0.1:0:80",
        "-v",
        &volume,
        "--memory",
        "64m",
        "-e",
        "A=1",
    ];
    dock.start("web", &options);
    dock.sh("web", "echo one > /data/db");
    dock.ok(&["snapshot", &web]);
    dock.sh("web", "echo two > /data/db");
    let from = format!("{web}@latest");
    let made = |of: &str, more: &[&str]| {
        let name = dock.name(of);
        let mut args = vec!["restore", &from, "--name", &name];
        args.extend(more);
        dock.ok(&args)
    };

    made("same", &[]);
    let same = dock.inspect("same");
    assert_eq!(same["HostConfig"]["Memory"], 64 << 20);
    assert!(same["NetworkSettings"]["Networks"].get(&front).is_some());
    assert_eq!(dock.sh("same", "cat /data/db"), "one");
    assert_eq!(same["Config"]["Labels"]["test"], dock.mark.as_str());

    made("shared", &["--volumes", "share", "--env", "A=2", "--env", "B=3"]);
    assert_eq!(dock.sh("shared", "cat /data/db; echo $A $B"), "two\n2 3");
    made("bare", &["--no-preserve-networks", "--no-preserve-volumes", "--publish", "81/udp"]);
    let bare = dock.inspect("bare");
    assert!(bare["NetworkSettings"]["Networks"].get(&front).is_none(), "{bare}");
    assert!(bare["HostConfig"]["PortBindings"].get("81/udp").is_some());
    assert!(bare["HostConfig"]["PortBindings"].get("80/tcp").is_none());
    assert_eq!(dock.sh("bare", "ls /data 2>/dev/null | wc -l"), "0");
    assert_eq!(dock.sh("web", "cat /data/db"), "two", "the source stays as it is");

    let taken = dock.run(&["restore", &from, "--name", &dock.name("same")]);
    assert_eq!(taken.code, Some(4), "{taken:?}");
    let clash = dock.run(&["restore", &from, "--volumes", "share", "--no-preserve-volumes"]);
    assert_eq!(clash.code, Some(2), "{clash:?}");
    let odd = dock.run(&["restore", &from, "--publish", "http"]);
    assert!(odd.code == Some(2) && odd.stderr.contains("`http`"), "{odd:?}");
}

#[test]
fn a_port_that_is_taken_is_replaced_and_told() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &["-p", "80"]);
    let port = dock.docker(["port", &dock.name("web"), "80/tcp"]);
    let port = port.lines().next().and_then(|line| line.rsplit(':').next()).expect("a port");
    dock.ok(&["snapshot", &web]);
    let publish = format!("{port}:80");
    let again = dock.name("again");
    let run = dock.ok(&["restore", &format!("{web}@latest"), "--name", &again, "-p", &publish]);
    assert!(run.stderr.contains(&format!("port {port} of the host is taken")), "{run:?}");
}

#[test]
fn eight_copies_have_volumes_and_addresses_of_their_own() {
    let dock = Dock::new();
    let (front, web) = (dock.network("front"), dock.reference("web"));
    let volume = format!("{}:/data", dock.name("data"));
    dock.start("web", &["--network", &front, "-v", &volume]);
    dock.sh("web", "echo seed > /data/db");
    let forked = dock.ok(&["fork", &web, "-n", "8", "--name", &dock.name("try")]);
    assert_eq!(forked.stdout.lines().count(), 8, "{forked:?}");
    let mut addresses = std::collections::BTreeSet::new();
    for number in 1..=8 {
        let copy = format!("try-{number}");
        assert_eq!(dock.sh(&copy, &format!("cat /data/db; echo {number} > /data/db")), "seed");
        let told = dock.inspect(&copy);
        let address = told["NetworkSettings"]["Networks"][&front]["IPAddress"].clone();
        addresses.insert(address.as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(addresses.len(), 8, "{addresses:?}");
    assert_eq!(dock.sh("web", "cat /data/db"), "seed");
    assert_eq!(dock.sh("try-3", "cat /data/db"), "3");
    let clash = dock.run(&["fork", &web, "-n", "2", "--publish", "8080:80"]);
    assert!(clash.code == Some(2) && clash.stderr.contains("cannot all have"), "{clash:?}");
}

#[test]
fn containers_are_made_of_images_and_removed_again() {
    let dock = Dock::new();
    let name = dock.name("box");
    let args = ["create", "--driver", "docker", "--template", IMAGE, "--name", &name];
    dock.ok(&[&args[..], &["--env", "MODE=test", "--memory", "64M"]].concat());
    let made = dock.inspect("box");
    assert_eq!(made["HostConfig"]["Memory"], 64 << 20);
    assert_eq!(made["Config"]["Labels"]["forkpoint.sandbox"], dock.ids()[0].as_str());
    let own = dock.reference("box");
    assert_eq!(dock.ok(&["exec", &own, "--", "printenv", "MODE"]).stdout, "test\n");
    let run = dock.run(&["run", "--rm", "--driver", "docker", "--template", IMAGE, "--", "false"]);
    assert_eq!(run.code, Some(1), "the command's own: {run:?}");
    assert_eq!(dock.ids().len(), 1);
    dock.ok(&["rm", "--force", &own]);
    assert_eq!(dock.docker(["ps", "-aq", "--filter", &format!("name={name}")]), "");

    let none = dock.run(&["create", "--driver", "docker"]);
    assert!(none.code == Some(2) && none.stderr.contains("--template"), "{none:?}");
    let missing = dock.run(&["create", "--driver", "docker", "--template", "no/such:image"]);
    assert!(missing.stderr.contains("no/such:image"), "{missing:?}");
    let local = dock.run(&["create", "--publish", "8080:80"]);
    assert!(local.code == Some(5) && local.stderr.contains("driver `local`"), "{local:?}");
    assert!(dock.ids().is_empty());
}

#[test]
fn labels_tell_where_a_copy_comes_from() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    let snapshot = dock.ok(&["snapshot", &web]).id().to_owned();
    let copy = dock.ok(&["restore", &snapshot, "--name", &dock.name("copy")]).id().to_owned();
    let labels = dock.inspect("copy")["Config"]["Labels"].clone();
    assert_eq!(labels["forkpoint.sandbox"], json!(copy));
    assert_eq!(labels["forkpoint.snapshot"], json!(snapshot));
}
