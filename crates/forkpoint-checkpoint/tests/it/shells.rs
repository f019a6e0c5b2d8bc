//! Shells and their children.

use crate::place::Place;

/// Counts without starting anything.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > /mnt/count.new; mv -f /mnt/count.new /mnt/count; sleep 0.01; done";

#[test]
fn a_counter_goes_on_after_capture() {
    let mut place = Place::new();
    let sandbox = place.shell(COUNTER);
    let before = place.grows("count", 3);
    place.capture(&sandbox);
    place.grows("count", before + 3);
}

#[test]
fn a_counter_goes_on_after_its_end() {
    let mut place = Place::new();
    let sandbox = place.shell(COUNTER);
    let mut before = place.grows("count", 3);
    place.capture(&sandbox);
    drop(sandbox);
    for _ in 0..3 {
        place.put("count", "0");
        let sandbox = place.restore();
        let after = place.grows("count", before);
        place.capture(&sandbox);
        drop(sandbox);
        before = after;
    }
}
