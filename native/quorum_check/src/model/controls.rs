//! The controls: the counterexamples (CE) that shaped the protocol. Each row removes the rule that prevents one, and a
//! search must find the violation. If it does not, the search is too weak to show anything about the correct protocol.

use crate::model::setting::{settings, units, Setting, Step};
use crate::model::settings::{
    APART, CHANGES_VOTERS, FEW_BATCHES, GIVEN, LONG_LEASES, SHORT_LEASES, UNHEARD_RESTART,
};
use quorum::message::Mode::{Read, Write};
use quorum::protocol_bug::ProtocolBug;

const WRITE: Step = Step::Lock(Write, &[0]);
const READ: Step = Step::Lock(Read, &[0]);
const UNLOCK: Step = Step::Unlock;
/// The second client starts when the first one holds the lock.
const THEN_WRITE: &[Step] = &[Step::Await(0), WRITE];
const LATER_WRITE: &[Step] = &[Step::Later(4), WRITE];
/// With [`APART`]: the third voter gives its vote to the second agent unasked, and takes it back after three units.
const TAKEN_BACK: &[&[Step]] = &[
    &[WRITE, Step::UnlockAsync, Step::Later(3), WRITE],
    THEN_WRITE,
];
/// While the lock is held, two voters start, and one restarts, of which the agent does not learn.
const RESTARTS: &[Step] = &[
    WRITE,
    Step::Disconnect(0, 2),
    Step::Crash(2),
    Step::Crash(3),
    Step::Crash(4),
];
const READ_UNNOTICED: &[Step] = &[READ, Step::Disconnect(0, 1), Step::Crash(1)];
const WAIT_FOR_HOLDER: &[Step] = &[Step::Await(1), WRITE, UNLOCK];

settings! {
    Setting::control;

    // dsync's own counterexample has 8 nodes: 3 are down, a lock is granted by the other 5, 2 of these 5 restart, and
    // the 3 start. Here it has 5. The second client does not reach the voters that keep the lock.
    "CE1" "5 members, 2 of them down at first, 1 restarts, no quarantine":
        members(5) client(0, RESTARTS) client(3, THEN_WRITE) bug(ProtocolBug::NoQuarantine) down(&[3, 4])
        apart(&[(0, 3), (0, 4), (3, 0), (3, 1)]) violates("Q1");

    // With an odd number of members one restart is enough: two quorums share one voter. The holder is disconnected
    // from that voter and does not learn of the restart.
    "CE2" "3 members, 1 restart, no quarantine":
        clients(&[&[WRITE], THEN_WRITE]) bug(ProtocolBug::NoQuarantine) voter_crashes(1) disconnects(1)
        apart(&[(0, 2), (1, 0)]) violates("Q1");

    // All agents report, so the quarantine ends. One agent still counts the vote that the voter has lost.
    "CE3" "3 members, 1 restart, votes of an earlier lifetime of a voter count":
        clients(&[&[WRITE], THEN_WRITE]) agent(2) bug(ProtocolBug::ForgottenVotesCount)
        voter_crashes(1) disconnects(1) apart(&[(0, 2), (1, 0)]) violates("Q1");

    // A reader's quorum of half the members shares only one member with a writer's quorum, so one restart is enough.
    // The reader is not connected to one voter. Another voter restarts unnoticed while the reader holds.
    "CE4" "4 members, readers need 2 of them, 1 restart, no quarantine":
        members(4) clients(&[READ_UNNOTICED, THEN_WRITE]) bug(ProtocolBug::NoQuarantine) bug(ProtocolBug::ReadHalf)
        delays(1) apart(&[(0, 3), (1, 0)])
        rules(|rules| rules.heartbeat = units(9)) violates("Q1");

    // If readers need a majority, the same restart violates nothing. (Only Q1: without a quarantine, a vote of an
    // earlier lifetime may count.)
    "CE4-majority" "4 members, readers need 3 of them, 1 restart, no quarantine":
        members(4) clients(&[READ_UNNOTICED, THEN_WRITE]) bug(ProtocolBug::NoQuarantine)
        delays(1) apart(&[(0, 3), (1, 0)])
        rules(|rules| rules.heartbeat = units(9)) only("Q1");

    "CE5" "3 members, 1 restart, a quarantine shorter than the holder's lease":
        clients(&[&[WRITE], THEN_WRITE]) voter_crashes(1) time(1) disconnects(1) apart(&[(0, 2), (1, 0)])
        quarantine(units(1)) crashing(&[1]) rules(|rules| rules.heartbeat = units(9)) violates("Q1");

    // The voters that restart know the new rules only. The first holder counts on their votes by the old ones.
    "ShorterLeases" "3 members, 2 restart with shorter leases, and their quarantine is that of the new rules":
        clients(&[&[WRITE], THEN_WRITE]) renewed(&[1]) voter_crashes(2) time(4) quarantine(units(2))
        rules(LONG_LEASES) new_rules(SHORT_LEASES) violates("Q1");

    // With the leases of their files, the same restarts violate nothing, also after the quarantine.
    "ShorterLeases-file" "3 members, 2 restart with shorter leases, and their quarantine is that of their files":
        clients(&[&[WRITE], THEN_WRITE]) renewed(&[1]) voter_crashes(2) time(7)
        rules(LONG_LEASES) new_rules(SHORT_LEASES) only("Q1");

    "CE6" "3 members, a voter drops votes before the holder's lease ends":
        clients(&[&[WRITE], THEN_WRITE]) time(2) disconnects(1) apart(&[(0, 2)])
        rules(|rules| rules.voter_lease = units(2)) violates("Q1");

    // The first holder crashes silently, and its fence with it. The second holder gets the same fence.
    "CE7" "3 members, the fence is the highest reported one plus one, and no voter records it":
        clients(&[&[WRITE], LATER_WRITE]) bug(ProtocolBug::FenceNotWritten) time(6) agent_crashes(1)
        rules(|rules| rules.heartbeat = units(9)) violates("Q5");

    // The voters have different marks at first. The first holder has the highest and crashes before a quorum knows
    // it. The second holder asks a quorum that does not.
    "CE8" "3 members, the agent sends the fence to the voters and does not wait for a quorum":
        clients(&[&[WRITE], LATER_WRITE]) bug(ProtocolBug::FenceNotAwaited) time(6) delays(1) agent_crashes(1)
        marks(&[9, 0, 0]) apart(&[(0, 2), (1, 0)]) single_delays(false)
        rules(|rules| rules.heartbeat = units(9)) violates("Q5");

    // The voter that restarts has forgotten the fence of the first holder. The third voter never knew it.
    "StaleBelieved" "3 members, 1 restarts with an old disk, and no member reports it":
        clients(&[&[WRITE, UNLOCK], THEN_WRITE]) bug(ProtocolBug::StaleBelieved) voter_crashes(1) old_disks(1) time(4)
        apart(&[(0, 2), (1, 0)]) agent(2) violates("Q5");

    "StaleBelieved-Q14" "the same, found before a fence is given":
        clients(&[&[WRITE, UNLOCK]]) bug(ProtocolBug::StaleBelieved) voter_crashes(1) old_disks(1) time(4)
        violates("Q14");

    // Two clients of one node wait while another node holds the lock. Each gets the next fence, and the voters were
    // asked for one.
    "CE10" "3 members, a lock passed on within a node has a fence that no voter gave":
        clients(&[WAIT_FOR_HOLDER, &[WRITE, UNLOCK, WRITE]]) client(0, WAIT_FOR_HOLDER)
        bug(ProtocolBug::FencesNotTaken) violates("Q5");

    // The second client counts a vote that the restarted voter has forgotten. The first one gets a vote of the next
    // lifetime beside it. Then its other vote ends, because it is cut off from that voter for a lease.
    "CE11" "3 members, 1 restart, any held lock is asserted in the quarantine":
        clients(&[UNHEARD_RESTART, THEN_WRITE]) bug(ProtocolBug::AnyLockContinues) time(4)
        marks(&[0, 0, 9]) single_delays(false) rules(FEW_BATCHES) violates("Q1");

    "CE11-votes" "the same, found at the assertion, with other faults":
        clients(&[&[WRITE], THEN_WRITE]) bug(ProtocolBug::AnyLockContinues) delays(1) voter_crashes(1) crashing(&[1])
        apart(&[(1, 0)]) violates("Votes");

    // The agent still counts a vote that the voter has dropped. (Until another client holds the lock, it takes a
    // second such voter and more time.)
    "SameGeneration" "3 members, a voter drops votes and keeps the generation":
        clients(&[&[WRITE]]) bug(ProtocolBug::SameGeneration) time(4) delays(3)
        rules(|rules| rules.heartbeat = units(2)) violates("Q2");

    "LeaseFromAnswer" "3 members, the lease starts when the answer arrives":
        clients(&[&[WRITE], THEN_WRITE]) bug(ProtocolBug::LeaseFromAnswer) time(5) delays(2) single_delays(false)
        rules(|rules| (rules.heartbeat, rules.attempt, rules.wait) = (units(9), units(3), units(5))) violates("Q1");

    "RevokedForgotten" "3 members, a revoked lock is forgotten before its holder is informed":
        clients(&[&[WRITE], &[Step::Await(0), Step::Revoke(0), WRITE]]) bug(ProtocolBug::RevokedForgotten)
        reorders(2) violates("Q1");

    "UnlockKeepsHeld" "3 members, `held` is true after the unlock":
        clients(&[&[WRITE, Step::UnlockAsync], THEN_WRITE]) bug(ProtocolBug::UnlockKeepsHeld) violates("Q8");

    // The first agent of the node crashes, and so does the second one, whose first frame is late. The third one holds.
    "FirstFrameBuries" "3 members, the first frame of another agent ends the votes of the live one":
        clients(&[&[WRITE], THEN_WRITE]) bug(ProtocolBug::FirstFrameBuries) agent_crashes(2) delays(1)
        apart(&[(0, 2), (1, 0)]) reorders(0) violates("Q1");

    "FirstFrameBuries-guest" "the same, and its node is a guest":
        client(3, &[WRITE]) client(0, THEN_WRITE) bug(ProtocolBug::FirstFrameBuries) agent_crashes(2) delays(1)
        apart(&[(3, 2), (0, 0)]) reorders(0) violates("Q1");

    // By the file of the voter that restarts there are no guests, so it waits for the members only. The guest still
    // counts its earlier vote: it is not told of the restart.
    "GuestsForgotten" "3 members, a voter votes for a guest, does not store that there are guests, and restarts":
        client(3, &[WRITE]) client(0, THEN_WRITE) agent(1) agent(2) bug(ProtocolBug::GuestsForgotten)
        voter_crashes(1) apart(&[(3, 2), (0, 0)]) violates("Q1");

    "GuestsForgotten-V7" "the same, found at the vote":
        client(3, &[WRITE]) bug(ProtocolBug::GuestsForgotten) violates("V7");

    // Each agent has the vote of one voter, and waits for those of the others.
    "NoRecalls" "3 members, three agents, and no vote is recalled":
        clients(&[&[WRITE, UNLOCK], &[WRITE, UNLOCK], &[WRITE, UNLOCK]]) bug(ProtocolBug::NoRecalls)
        reorders(3) quiescence_every(1) violates("PR1");

    // The first agent reaches the first and the third voter, and the second agent the second and the third one. The
    // third voter gives its vote to the second agent unasked. That agent stalls, so the voter does not hear it, takes
    // the vote back, and votes for the first agent. Then the notice arrives.
    "GivenFromArrival" "3 members, a vote given unasked counts from the arrival of its notice":
        clients(TAKEN_BACK) bug(ProtocolBug::GivenFromArrival) apart(APART) time(3) delays(1) stalls(1)
        single_delays(false) rules(LONG_LEASES) violates("Q1");

    // The notice arrives at once.
    "GivenCountsLong" "3 members, a vote given unasked counts for as long as any other":
        clients(TAKEN_BACK) bug(ProtocolBug::GivenCountsLong) apart(APART) time(3) stalls(1)
        rules(LONG_LEASES) violates("Q1");

    "GivenEndsWithConnection" "3 members, a vote given unasked is taken back when the connection is closed":
        clients(GIVEN) bug(ProtocolBug::GivenEndsWithConnection) apart(APART) downs(1)
        violates("Q1");

    // The answer is late, after the timers of the agent would have dropped the lock.
    "ExpiredRenewed" "3 members, an agent takes an answer before it drops expired locks":
        clients(&[&[WRITE]]) bug(ProtocolBug::ExpiredRenewed) time(3) delays(2) stalls(1) violates("Q15");

    // The first voter answers before it votes for the lock, and the third one when it has taken its vote back.
    "LateAnswers" "3 members, answers which names have votes count for too long":
        clients(CHANGES_VOTERS) time(3) questions(1) answers(units(2)) rules(LONG_LEASES) violates("Q15");

    "QuarantinedAnswers" "3 members, 1 restarts, and answers which names have votes":
        clients(&[&[WRITE]]) voter_crashes(1) questions(1) quarantined_answers(true) apart(&[(0, 2)]) agent(1)
        violates("Q15");

    // Safety does not depend on this rule.
    "AnyOrder" "3 members, voters accept batches in any order, and twice":
        clients(&[&[WRITE, UNLOCK, READ, UNLOCK], &[WRITE, UNLOCK]]) bug(ProtocolBug::AnyOrder)
        time(2) delays(2) duplicates(2) quiescence_every(64);
}
