//! What every driver must do.
//!
//! The cases use only commands that every small Linux has: `true`, `sh`, `cat`, `echo`, `rm`,
//! `sleep`, `pwd`, `printenv`, `hostname`. Where the platform is a real one they use whatever
//! coreutils and findutils have.

use std::sync::Arc;

use forkpoint_core::{driver::Driver, spec::SandboxSpec};
use futures::future::BoxFuture;

pub mod commands;
pub mod files;
pub mod lives;
pub mod looks;
mod scene;
pub mod snapshots;
pub mod switches;
pub mod trees;

/// A platform to try a driver on, empty of sandboxes of ours.
pub trait DriverFixture: Send + Sync {
    /// A driver as one more process would open it.
    fn driver(&self) -> Arc<dyn Driver>;

    /// What a small sandbox is made from.
    fn spec(&self) -> SandboxSpec;

    /// A number that was not given before.
    fn unique(&self) -> u128;

    /// Starts something that is not ours, where the driver can adopt.
    fn foreign(&self) -> BoxFuture<'_, Option<String>>;

    /// Whether commands really run there, on real files.
    fn real(&self) -> bool {
        true
    }

    /// Whether a sandbox can have files and processes of several users.
    fn privileged(&self) -> bool {
        true
    }

    /// Runs a case, on the runtime that the driver needs.
    fn run(&self, case: BoxFuture<'_, ()>) {
        futures::executor::block_on(case);
    }
}

/// One test for each case, on a fixture that `$make` makes anew.
#[macro_export]
macro_rules! driver_conformance {
    ($make:expr) => {
        $crate::driver_conformance! { $make =>
            commands::runs_commands,
            commands::feeds_standard_input_and_environment,
            commands::signals_and_limits_end_a_command,
            commands::a_command_that_is_missing_or_cannot_run_is_told,
            commands::a_command_runs_where_it_is_told_to,
            commands::input_that_nobody_gives_is_empty,
            commands::much_goes_through_every_pipe_at_once,
            commands::many_commands_run_at_once,
            commands::a_shell_traps_a_signal,
            commands::a_terminal_has_a_size_that_changes,
            commands::a_command_runs_as_the_user_that_it_is_told,
            lives::an_id_is_made_once_and_destroyed_twice,
            lives::another_process_finds_it,
            lives::rolls_back_in_place_and_again,
            lives::adopts_and_never_destroys_what_is_not_ours,
            files::reads_writes_and_lists_files,
            looks::states_can_be_looked_into,
            looks::what_differs_is_told,
            looks::directories_links_and_modes_are_made,
            snapshots::a_restored_copy_is_equal_and_apart,
            snapshots::snapshots_survive_their_sandbox_and_each_other,
            snapshots::unsealing_leaves_the_sandbox_where_it_stood,
            snapshots::refuses_to_discard_what_is_not_marked,
            snapshots::exports_and_imports,
            snapshots::tells_what_a_snapshot_would_miss,
            snapshots::a_synced_one_restores_and_says_so_again,
            switches::settles_after_a_dropped_pause,
            switches::what_is_stopped_keeps_its_files_and_comes_back,
            switches::what_is_stopped_can_be_sealed_rolled_back_and_destroyed,
            switches::a_stop_ends_what_nobody_waits_for,
            switches::what_its_user_paused_stays_paused,
            switches::what_is_stopped_is_not_paused,
            switches::what_is_missing_cannot_be_switched,
            trees::a_copy_has_the_same_tree,
            trees::a_copy_of_a_copy_has_the_same_tree,
            trees::a_rollback_brings_the_same_tree_back,
            trees::owners_are_kept,
        }
    };
    ($make:expr => $($group:ident :: $case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                let fixture = $make;
                let case = $crate::conformance::driver::$group::$case(&fixture);
                $crate::conformance::driver::DriverFixture::run(&fixture, Box::pin(case));
            }
        )*
    };
}
