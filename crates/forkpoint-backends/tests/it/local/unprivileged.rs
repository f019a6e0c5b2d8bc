//! The tests once more, by somebody who may nothing.
//!
//! Every test of the modules that are named here runs. Those that cannot say so, with their reason, and are
//! listed: one that begins to do nothing is found here.

use crate::unprivileged::{Ran, Unprivileged};

use super::{HELPER, helper};

/// What only root can try. Each says why, where it is.
const BY_ROOT: [&str; 21] = [
    "expect::who_is_expected_does_the_work",
    "expect::who_is_expected_for_something_else_is_left_alone",
    "faults::what_is_mounted_stays_over_a_seal_without_mapped_users",
    "files::links_lead_nowhere_outside_without_mapped_users",
    "hostile::a_way_out_of_a_chroot_ends_inside_without_mapped_users",
    "hostile::calls_of_the_machines_root_are_refused_without_mapped_users",
    "hostile::commands_have_few_rights_without_mapped_users",
    "hostile::nobody_else_is_seen_without_mapped_users",
    "hostile::our_own_program_is_out_of_reach_without_mapped_users",
    "hostile::the_drivers_environment_stays_outside_without_mapped_users",
    "hostile::the_host_as_a_template_shows_nothing_that_is_its_own",
    "limits::a_fork_bomb_can_be_destroyed",
    "limits::a_fork_bomb_stays_in_its_sandbox",
    "limits::a_share_of_the_processor_is_a_share",
    "limits::who_takes_too_much_memory_is_killed_alone",
    "templates::processes_of_a_promoted_snapshot_run_in_every_sandbox_made_of_it",
    "workspace::hostile::a_mount_from_the_same_file_system_is_not_written_through",
    "workspace::hostile::a_mount_of_the_hosts_is_not_written_through",
    "workspace::room::a_file_that_nobody_may_change_is_found_before_anything_changes",
    "workspace::room::a_full_disk_is_found_before_anything_changes",
    "workspace::room::a_workspace_on_another_file_system_is_as_good",
];

fn passes_without_root(modules: &[&str], at_least: usize) {
    let Some(user) = Unprivileged::new() else {
        return; // The tests run without root already.
    };
    let helper = user.bring(&helper());
    let suites: Vec<String> = modules.iter().map(|name| format!("local::{name}::")).collect();
    let suites: Vec<&str> = suites.iter().map(String::as_str).collect();
    let ran = user.run(&suites, &[(HELPER, helper.as_os_str())]);
    let (skipped, whole): (Vec<&Ran>, Vec<&Ran>) =
        ran.iter().partition(|ran| ran.skipped.is_some());
    let unknown: Vec<_> = skipped.iter().filter(|ran| !is_by_root(&ran.name)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(whole.len() >= at_least, "{} of {} ran", whole.len(), ran.len());
}

fn is_by_root(name: &str) -> bool {
    name.strip_prefix("local::").is_some_and(|name| BY_ROOT.contains(&name))
}

#[test]
fn the_suite_passes_without_root() {
    passes_without_root(&["mapped", "images", "templates", "rights"], 68);
}

#[test]
fn workspaces_are_changed_and_brought_home_without_root() {
    passes_without_root(&["workspace"], 60);
}

#[test]
fn attacks_fail_without_root() {
    passes_without_root(&["hostile", "files", "limits"], 20);
}

#[test]
fn what_dies_and_what_comes_back_is_the_same_without_root() {
    passes_without_root(&["expect", "faults", "seals", "together", "trees", "unchanged"], 38);
}
