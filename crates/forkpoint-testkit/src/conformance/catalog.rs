//! What every catalog must do.
//!
//! Each case is a function that gets a fresh catalog and panics when it does not behave.
//! [`catalog_conformance!`](crate::catalog_conformance) makes a test of each.

use crate::CatalogOpener;

pub mod claims;
pub mod find;
pub mod lineage;
pub mod lists;
pub mod operations;
pub mod owners;
pub mod pieces;
pub mod records;
pub mod retention;
pub mod scene;

/// Runs one case.
pub fn run(fixture: &dyn CatalogOpener, case: impl AsyncFnOnce(&dyn CatalogOpener)) {
    futures::executor::block_on(case(fixture));
}

/// One `#[test]` for each case, on a fixture that the expression makes anew each time.
#[macro_export]
macro_rules! catalog_conformance {
    ($fixture:expr) => {
        $crate::catalog_conformance! { $fixture =>
            operations::nothing_is_visible_before_its_commit,
            operations::an_aborted_operation_leaves_nothing,
            operations::an_operation_is_closed_once,
            operations::another_owner_cannot_close_an_operation,
            operations::reclaiming_voids_the_older_claim,
            operations::reclaiming_says_what_became_of_an_operation,
            operations::a_commit_is_remembered_for_a_while,
            operations::unfinished_operations_come_oldest_first,
            claims::busy_names_what_is_in_the_way,
            claims::forks_share_a_snapshot_that_nobody_may_delete_meanwhile,
            claims::rollbacks_share_a_snapshot_but_not_a_sandbox,
            claims::a_switch_has_its_sandbox_alone_and_changes_nothing,
            claims::a_name_is_claimed_from_the_beginning,
            claims::what_is_missing_cannot_be_worked_on,
            claims::what_is_known_cannot_be_made_again,
            claims::a_name_is_given_once,
            claims::a_refused_operation_claims_nothing,
            owners::every_handle_is_an_owner_of_its_own,
            owners::an_owner_is_us_alive_or_gone,
            owners::what_a_gone_owner_left_can_be_taken_over,
            pieces::chores_stay_until_they_are_done,
            pieces::leftovers_become_chores,
            pieces::a_commit_answers_with_its_own_chores_only,
            pieces::a_piece_goes_with_its_last_holder,
            pieces::a_copy_holds_what_it_was_made_from,
            pieces::a_sandbox_holds_only_what_it_stands_on,
            pieces::a_rollback_moves_what_a_sandbox_holds,
            pieces::what_lies_below_another_piece_stays,
            pieces::a_piece_of_two_snapshots_stays_with_the_second,
            pieces::drivers_do_not_share_pieces,
            pieces::what_is_stored_is_what_the_pieces_occupy,
            pieces::a_piece_over_an_unknown_one_is_refused,
            lineage::scopes_answer_in_the_order_of_commits,
            lineage::a_deleted_parent_is_remembered_while_a_child_lives,
            lineage::a_deleted_head_is_remembered_while_its_sandbox_stands_there,
            lineage::forgetting_goes_up_to_the_next_that_is_needed,
            find::a_sandbox_is_found_by_id_name_and_prefix,
            find::a_snapshot_is_found_by_id_name_and_prefix,
            find::an_ambiguous_prefix_lists_some_matches,
            find::nothing_in_a_reference_is_a_wildcard,
            find::a_former_sandbox_is_found_by_its_snapshots,
            lists::sandboxes_come_in_order_and_by_page,
            lists::sandboxes_are_filtered,
            lists::sandboxes_whose_time_is_over_are_found,
            lists::snapshots_are_filtered,
            lists::snapshots_come_newest_first_and_by_page,
            lists::a_page_is_not_disturbed_by_what_is_committed_meanwhile,
            lists::an_empty_catalog_answers_everything,
            records::every_field_of_a_sandbox_survives,
            records::every_field_of_a_snapshot_survives,
            records::an_agent_leaves_its_state,
            records::an_edit_changes_what_it_may_and_nothing_else,
            records::restores_are_counted,
            records::usage_follows_every_change,
            records::sizes_beyond_the_signed_range_add_up,
            retention::plans_equal_those_of_a_full_scan,
        }
    };
    ($fixture:expr => $($group:ident :: $case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                let fixture = $fixture;
                $crate::conformance::catalog::run(
                    &fixture,
                    $crate::conformance::catalog::$group::$case,
                );
            }
        )*
    };
}
