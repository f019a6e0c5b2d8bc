//! Layers that go elsewhere as a tree of a part (`tree/1`), and trees that come from there.
//!
//! A tree on its way says what is seen inside: owners as the sandbox has them, attributes under the names that
//! somebody inside gave them. So nothing that comes can be taken for a mark of overlayfs, whatever it is called.

mod arrive;
mod content;
mod leave;

pub use arrive::Arrival;
pub use leave::Departure;

/// Stands among the attributes of a file that was in a layer below before somebody wrote to it. No
/// file system has attributes of such a name.
const COPIED_UP: &str = "forkpoint.copied_up";

/// Whether owners can be kept: else there is one user inside, who is root there and we outside.
fn keeps_owners() -> bool {
    rustix::process::geteuid().is_root()
}
