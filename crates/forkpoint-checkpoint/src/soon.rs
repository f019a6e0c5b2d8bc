//! Waiting for what is expected soon.
//!
//! Who sleeps leaves a processor with nothing to do, and to wake that takes a virtual machine a tenth of a millisecond or two: often
//! longer than what is waited for.

use std::time::Duration;

use crate::sys;

/// How long somebody looks again and again, lets others run meanwhile, and only then goes to sleep.
#[derive(Debug)]
pub struct Soon {
    until: Duration,
    /// How often others may still run: then the processor has something to do, and sleeping is right.
    turns: u32,
}

impl Default for Soon {
    fn default() -> Self {
        Self { until: sys::now() + Self::MOST, turns: Self::TURNS }
    }
}

impl Soon {
    const MOST: Duration = Duration::from_micros(500);
    const TURNS: u32 = 8;
    /// Who is away for longer was not alone.
    const ALONE: Duration = Duration::from_micros(20);

    /// Whether it came. If not, sleep.
    pub fn comes(mut self, is_here: impl Fn() -> bool) -> bool {
        let mut before = sys::now();
        while !is_here() {
            rustix::thread::sched_yield();
            let now = sys::now();
            if now - before > Self::ALONE {
                self.turns -= 1;
                // While others ran, nobody looked.
                self.until += now - before;
            }
            if self.turns == 0 || now > self.until {
                return is_here();
            }
            before = now;
        }
        true
    }
}
