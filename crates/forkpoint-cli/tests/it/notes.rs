//! What is written on snapshots and sandboxes: pins, names, ends, and the state of an agent.

use std::fs;

use serde_json::json;

use crate::harness::{Home, assert_told};

#[test]
fn edit_changes_what_is_said_and_nothing_else() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "--name", "one", "--label", "a=1", "--label", "b=2"]);
    let before = home.ok(["show", "one", "--json"]).json();
    let told = home.ok(["edit", "one", "--name", "good", "-m", "it works", "--pin"]);
    assert_told!(told.told(), @r"
    changed snapshot `good`
    exit code 0
    ");
    home.ok(["edit", "good", "--label", "b=3", "--remove-label", "a", "--expires", "7d"]);
    let after = home.ok(["show", "good", "--json"]).json();
    assert_eq!(after["labels"], json!({"b": "3"}));
    assert_eq!((&after["description"], &after["pinned"]), (&json!("it works"), &json!(true)));
    assert!(after["expires"].is_string(), "{after}");
    assert_eq!((&after["id"], &after["created"]), (&before["id"], &before["created"]));
    let shown = home.ok(["show", "good"]).stdout;
    assert!(shown.contains("(in 6d)") && shown.contains("pinned"), "{shown}");
    let back =
        home.ok(["edit", "good", "--unpin", "--expires", "never", "-m", "", "--json"]).json();
    assert_eq!(back["pinned"], json!(false));
    assert!(back["expires"].is_null() && back["description"].is_null(), "{back}");
}

#[test]
fn edit_refuses_what_cannot_be() {
    let home = Home::with_web();
    for name in ["one", "two"] {
        home.ok(["snapshot", "web", "--name", name, "--no-sync"]);
    }
    assert_told!(home.run(["edit", "one"]).told(), @r"
    error: nothing was said that is to change
    hint: say one of the options that `forkpoint edit --help` lists
    exit code 2
    ");
    assert_eq!(home.run(["edit", "one", "--name", "two"]).code, Some(4));
    assert_eq!(home.run(["edit", "onne", "--pin"]).code, Some(3));
    for bad in ["--expires=soon", "--expires=0s", "--name=a b", "--label=x"] {
        assert_eq!(home.run(["edit", "one", bad]).code, Some(2), "{bad}");
    }
    assert_eq!(home.run(["edit", "one", "--pin", "--unpin"]).code, Some(2));
}

#[test]
fn a_pinned_one_stays_and_an_expired_one_goes() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "--name", "pinned", "--pin", "--expires", "1ms"]);
    home.ok(["snapshot", "web", "--name", "short", "--expires", "1ms"]);
    home.ok(["snapshot", "web", "--name", "last"]);
    let report = home.ok(["prune", "--json"]).json();
    assert_eq!(report["plan"][0]["name"], "short", "expiry is a limit of its own: {report}");
    assert_eq!(report["deleted"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 2);
}

#[test]
fn references_by_place_and_prefix() {
    let home = Home::with_web();
    let ids: Vec<String> =
        (0..3).map(|_| home.ok(["snapshot", "web", "--no-sync"]).id().to_owned()).collect();
    let id_of = |reference: &str| home.ok(["show", reference, "--json"]).json()["id"].clone();
    for (reference, at) in [("web@latest", 2), ("web@1", 2), ("web@2", 1), ("web@3", 0)] {
        assert_eq!(id_of(reference), ids[at].as_str(), "{reference}");
    }
    assert_eq!(id_of(&ids[0][..28]), ids[0].as_str());
    assert_eq!(home.run(["show", "web@4"]).code, Some(3));
    for bad in ["web@0", "web@first"] {
        assert_eq!(home.run(["show", bad]).code, Some(2), "{bad}");
    }
    home.ok(["rm", "web"]);
    assert_eq!(id_of("web@latest"), ids[2].as_str(), "also when it is gone");
}

#[test]
fn the_state_of_an_agent_comes_back_byte_for_byte() {
    let home = Home::with_web();
    let state = b"{\"goal\": \"\\u00fc\"}\n\n";
    let taken = ["snapshot", "web", "--name", "one", "--agent-state", "-"];
    assert_eq!(home.run_with_input(taken, state).code, Some(0));
    assert_eq!(home.ok(["show", "one", "--agent-state"]).stdout.as_bytes(), state);
    let file = home.path().join("memory");
    home.ok(["show", "one", "--agent-state", "-o", file.to_str().unwrap()]);
    assert_eq!(fs::read(&file).unwrap(), state);
    home.ok(["snapshot", "web", "--name", "two"]);
    let none = home.run(["show", "two", "--agent-state"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(3), ""), "{none:?}");
    let large = vec![b'x'; (1 << 20) + 1];
    let refused = home.run_with_input(["snapshot", "web", "--agent-state", "-"], &large);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn a_sandbox_goes_when_its_time_is_over() {
    let home = Home::new();
    home.ok(["create", "--name", "long", "--ttl", "4h"]);
    let table = home.ok(["ps"]).stdout;
    assert!(table.contains("LEFT") && table.contains(" 3h"), "{table}");
    assert!(home.ok(["ps", "--json"]).json()["sandboxes"][0]["expires"].is_string());
    home.ok(["create", "--name", "short", "--ttl", "1ms"]);
    let gone = home.run(["exec", "short", "--", "true"]);
    assert_eq!(gone.code, Some(125), "{gone:?}");
    assert!(gone.stderr.contains("removed sandbox `short`: its time was over"), "{gone:?}");
    home.ok(["snapshot", "long", "--name", "one"]);
    home.ok(["fork", "one", "-n", "2", "--ttl", "1ms"]);
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 1);
    for bad in ["0s", "soon", "4"] {
        assert_eq!(home.run(["create", "--ttl", bad]).code, Some(2), "{bad}");
    }
}

#[test]
fn a_command_ends_with_the_time_of_its_sandbox() {
    let home = Home::new();
    let run = home.run(["run", "--ttl", "300ms", "--", "sleep", "1000"]);
    assert_eq!(run.code, Some(124), "{run:?}");
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
}

#[test]
fn what_runs_in_a_sandbox_ends_with_it_without_anybody_coming_by() {
    let home = Home::new();
    home.ok(["create", "--name", "short", "--ttl", "700ms"]);
    // Nobody else asks anything meanwhile.
    let mut sleeper = home.start(["exec", "short", "--", "sleep", "1000"]);
    let ended = sleeper.wait().expect("it ends");
    assert!(!ended.success());
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
}
