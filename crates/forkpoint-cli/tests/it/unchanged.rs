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
