//! Controls of changes of members by written traces: with a rule broken, the test that is named after it must fail. The
//! searches of `quorum_check` find the other controls.

use crate::common::bugs;
use crate::scenarios::views_agent as agent;
use crate::views as voter;
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use std::panic::{catch_unwind, UnwindSafe};

fn fails(bug: ProtocolBug, trace: impl FnOnce() + UnwindSafe) {
    bugs::enable(ProtocolBugs::NONE.with(bug));
    let result = catch_unwind(trace);
    bugs::enable(ProtocolBugs::NONE);
    assert!(result.is_err(), "{bug:?} is not found");
}

macro_rules! controls {
    ($($test:ident($bug:ident): $trace:path;)*) => {$(
        #[test]
        fn $test() {
            fails(ProtocolBug::$bug, $trace);
        }
    )*};
}

controls! {
    late_seals_keep(KeptLate): agent::a_vote_whose_lease_is_over_is_not_kept;
    deadlines_are_set_anew(DeadlineAnew): agent::a_second_change_extends_nothing;
    rejected_assertions_are_given_up(SettlesRefused): agent::a_rejected_assertion_is_repeated_soon;
    locks_survive_a_reset(ResetKeepsLocks): agent::a_record_of_another_cluster_is_believed_from_the_own_voter_only;
    restarted_voters_believe(RestartedBelieves): voter::a_voter_that_restarts_before_it_votes_waits_for_a_lease;
    a_lost_member_goes_on(LostIsOld): voter::a_lost_member_does_not_vote;
    lost_members_report(LostReports): voter::a_node_that_lost_its_file_reports_nothing;
    nobody_learns_from_those_that_vote(NoLearningFromNew): voter::a_late_member_learns_from_one_that_votes;
    promises_before_locks_are_kept(PromiseBeforeOver): voter::a_change_waits_for_the_agents_with_votes;
    changes_wait_for_nobody(NoReady): voter::a_change_waits_for_the_agents_with_votes;
    accepted_records_are_forgotten(AcceptedForgotten): voter::an_accepted_record_is_proposed_again;
    a_majority_is_reset(ResetMajority): voter::a_reset_waits_for_the_disks_of_all;
}
