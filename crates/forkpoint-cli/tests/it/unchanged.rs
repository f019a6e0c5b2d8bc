//! `snapshot --skip-unchanged`.

use crate::harness::{Home, assert_told};

#[test]
fn nothing_is_taken_twice_and_the_id_is_that_of_the_one_that_holds_it() {
    let home = Home::with_web();
    let skip = ["snapshot", "web", "--skip-unchanged"];
    let first = home.ok(skip).id().to_owned();
    let again = home.ok(skip);
    assert_eq!(again.id(), first);
    assert_told!(again.told(), @r"
    [snp]
    nothing was taken: nothing changed since `[snp]`
    exit code 0
    ");
    let report = home.ok(["snapshot", "web", "--skip-unchanged", "--json"]).json();
    assert_eq!(report["snapshot"], first.as_str(), "{report}");
    home.sh("web", "echo more > /srv/more");
    assert_ne!(home.ok(skip).id(), first);
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 2);
    home.ok(["snapshot", "web"]);
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 3, "only where it is asked for");
}

#[test]
fn what_was_to_be_written_on_it_is_told_as_lost() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "-m", "the first"]);
    let skip = ["snapshot", "web", "--skip-unchanged", "-m", "again", "--label", "a=1"];
    let skipped = home.ok(skip);
    assert_told!(skipped.told(), @r"
    [snp]
    nothing was taken: nothing changed since `[snp]`
    warning: not kept: --description, --label; `forkpoint edit [snp]` changes what it says
    exit code 0
    ");
    let json = home.ok(skip.iter().chain(&["--json"]));
    assert!(json.stderr.contains("not kept: --description, --label"), "{json:?}");
    home.ok(["edit", skipped.id(), "-m", "again", "--label", "a=1"]);
    assert_eq!(home.ok(["show", "web@latest", "--json"]).json()["description"], "again");
    home.sh("web", "echo more > /srv/more");
    assert!(!home.ok(skip).stderr.contains("not kept"), "it was taken");
}

#[test]
fn a_full_one_is_not_taken_twice_while_what_runs_only_waits() {
    let home = Home::with_web();
    home.sh("web", "sleep infinity >/dev/null 2>&1 </dev/null &");
    let skip = ["snapshot", "web", "--full", "--skip-unchanged"];
    let first = home.ok(skip).id().to_owned();
    let again = home.ok(skip);
    assert_eq!(again.id(), first, "{again:?}");
    assert_eq!(
        home.ok(["snapshot", "web", "--skip-unchanged"]).id(),
        first,
        "it has the files too"
    );
    home.sh("web", "sleep infinity >/dev/null 2>&1 </dev/null &");
    assert_ne!(home.ok(skip).id(), first, "something else runs");
}
