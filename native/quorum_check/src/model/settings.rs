//! The settings of the correct protocol: no search of them may find a violation.

use crate::model::setting::{settings, units, Disk, Order, Setting, Step};
use quorum::message::Mode::{Read, Write};
use quorum::rules::Rules;

const A: &[usize] = &[0];
const B: &[usize] = &[1];
const BOTH: &[usize] = &[0, 1];
const WRITE: Step = Step::Lock(Write, A);
const READ: Step = Step::Lock(Read, A);
const UNLOCK: Step = Step::Unlock;
const TRY: Step = Step::LockWithin(Write, A, 0);
const TWO_WRITERS: &[&[Step]] = &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]];
const WRITER_AND_READER: &[&[Step]] = &[&[WRITE, UNLOCK], &[READ, UNLOCK]];
const REVOKER: &[&[Step]] = &[&[WRITE], &[Step::Await(0), Step::Revoke(0), WRITE, UNLOCK]];
/// With [`APART`]: each agent needs the third voter, which gives its vote to the second one unasked.
pub const GIVEN: &[&[Step]] = &[&[WRITE, UNLOCK, WRITE], &[WRITE]];
pub const APART: &[(usize, usize)] = &[(0, 1), (1, 0)];
/// With [`SECOND_OF_FIRST_NODE`]: two clients of one node request a lock that another node holds.
const HANDOVER: &[&[Step]] = &[
    &[Step::Await(1), WRITE, UNLOCK],
    &[WRITE, UNLOCK, WRITE, UNLOCK],
];
const SECOND_OF_FIRST_NODE: &[Step] = &[Step::Await(1), WRITE, Step::UnlockAsync];

/// Each kind of step, on two names.
const STORM: &[&[Step]] = &[
    &[
        WRITE,
        UNLOCK,
        READ,
        UNLOCK,
        Step::Lock(Write, BOTH),
        Step::UnlockAsync,
        WRITE,
        Step::Die,
    ],
    &[
        READ,
        UNLOCK,
        Step::Lock(Read, BOTH),
        UNLOCK,
        Step::Revoke(0),
        WRITE,
        UNLOCK,
    ],
    &[
        Step::Lock(Write, B),
        UNLOCK,
        Step::LockWithin(Write, BOTH, 5),
        UNLOCK,
        TRY,
        UNLOCK,
        WRITE,
        Step::UnlockAsync,
    ],
];

/// For a client of the first node, whose agent reaches the third voter only after the restart of that voter, and the
/// second voter only before. The agent of the second node does not reach the third voter after the restart.
pub const UNHEARD_RESTART: &[Step] = &[
    Step::Disconnect(0, 2),
    WRITE,
    Step::Disconnect(0, 1),
    Step::Later(2),
    Step::Disconnect(1, 2),
    Step::Crash(2),
    Step::Connect(0, 2),
];
pub const FEW_BATCHES: fn(&mut Rules) = |rules| {
    (rules.heartbeat, rules.wait) = (units(2), units(9));
};
/// After [`UNHEARD_RESTART`].
const RECONNECT: &[Step] = &[Step::Later(4), Step::Connect(0, 1), Step::Connect(1, 2)];

/// The second client gets the lock by unasked votes of its own voter and of the third one, which does not hear it from
/// then on. Later it gets the vote of the first voter.
pub const CHANGES_VOTERS: &[&[Step]] = &[
    &[WRITE, Step::UnlockAsync],
    &[
        Step::Disconnect(1, 0),
        Step::Await(0),
        WRITE,
        Step::Disconnect(1, 2),
        Step::Later(1),
        Step::Connect(1, 0),
    ],
];

/// Leases before and after a change of the rules. Few heartbeats, for few states.
pub const LONG_LEASES: fn(&mut Rules) = |rules| {
    (rules.holder_lease, rules.voter_lease) = (units(5), units(6));
    rules.heartbeat = units(9);
};
pub const SHORT_LEASES: fn(&mut Rules) = |rules| {
    (rules.holder_lease, rules.voter_lease) = (units(1), units(2));
};

settings! {
    Setting::sound;

    "first" "two members, two writers of one name, no fault": members(2) clients(TWO_WRITERS) reorders(0);
    // The only setting that bounds nothing but time.
    "all-orders" "two members, a writer and a reader, frames in every order":
        members(2) clients(&[&[WRITE, UNLOCK], &[READ]]) order(Order::Any) duplicates(1);
    "two-writers" "two writers without faults": clients(TWO_WRITERS) time(3);
    "reader-writer" "a reader and a writer without faults":
        clients(&[&[READ, UNLOCK], &[WRITE, Step::UnlockAsync]]) time(3);
    "three-clients" "a writer between two readers":
        clients(&[&[READ, UNLOCK], &[WRITE, UNLOCK], &[READ, UNLOCK]]) time(2);
    "crash" "a voter crashes and restarts": clients(TWO_WRITERS) time(5) delays(1) voter_crashes(1);
    "unstored-fence" "a voter restarts whose stored mark is below the fence of a lock that continues its vote":
        clients(&[&[WRITE], &[Step::Await(0), WRITE]]) marks(&[20, 20, 0]) agent(2) voter_crashes(1)
        crashing(&[2]) delays(1) reorders(1);
    "slow-disk" "a voter crashes while it stores a fence":
        clients(TWO_WRITERS) time(5) voter_crashes(1) disk(Disk::Slow) rules(|rules| rules.fence_block = 1);
    "agent-crash" "an agent crashes with its clients": clients(TWO_WRITERS) time(5) delays(1) agent_crashes(1);
    "late-frames" "frames are delayed or lost": clients(TWO_WRITERS) time(3) delays(3);
    "duplicates" "frames arrive twice": clients(WRITER_AND_READER) time(2) delays(1) duplicates(2);
    "expired-lease" "a lease expires at the voter while its agent is silent, and a delayed frame follows":
        clients(&[&[WRITE], &[WRITE]]) time(6) delays(4) rules(|rules| rules.heartbeat = units(2));
    "stalls" "a machine is not scheduled in time": clients(TWO_WRITERS) time(5) stalls(1);
    "disconnects" "members are disconnected and connected": clients(TWO_WRITERS) time(4) disconnects(2);
    "downs" "voters and agents find at different times that they are disconnected":
        clients(TWO_WRITERS) time(4) disconnects(1) downs(2);
    "given" "a vote is given unasked, and its agent is silent for so long that it is taken back":
        clients(GIVEN) apart(APART) time(3) delays(1) stalls(1) reorders(0) rules(LONG_LEASES);
    "given-down" "a vote is given unasked, and the connection to its agent is closed":
        clients(GIVEN) apart(APART) time(2) delays(1) downs(1) reorders(0);
    "three-writers" "three writers of one name":
        clients(&[&[WRITE, UNLOCK], &[WRITE, UNLOCK], &[WRITE, UNLOCK]]) time(1);
    "tries" "two tries and a request that waits":
        clients(&[&[TRY, UNLOCK], &[WRITE, UNLOCK], &[TRY, UNLOCK]]) time(2);
    "cold-start" "all machines start": clients(TWO_WRITERS) time(5) cold(true);
    "first-start" "two members start": members(2) clients(&[&[WRITE], &[]]) time(1) cold(true);
    "old-disk" "a voter restarts with an old state file, while others know its later life":
        clients(TWO_WRITERS) time(4) voter_crashes(1) old_disks(1);
    "old-disk-crash" "a voter restarts with an old state file, and another one restarts":
        clients(TWO_WRITERS) time(2) voter_crashes(2) old_disks(1) reorders(0);
    "shorter-leases" "restarted voters have rules with shorter leases, and so has one agent":
        clients(&[&[WRITE], &[Step::Await(0), WRITE]]) renewed(&[1]) time(7) voter_crashes(2) delays(1)
        quiescence_every(0) rules(LONG_LEASES) new_rules(SHORT_LEASES);
    "settled" "two members: a quarantine ends early, because both agents have settled":
        members(2) clients(WRITER_AND_READER) time(2) voter_crashes(1);
    "force-unlock" "a name is revoked, and frames of the revocation are lost": clients(REVOKER) time(3) delays(1);
    "force-unlock-crash" "a name is revoked, and a voter loses the revocation":
        clients(REVOKER) time(5) voter_crashes(1);
    "lock-many" "two writers of two names":
        names(2) clients(&[&[Step::Lock(Write, BOTH), UNLOCK], &[Step::Lock(Write, BOTH), UNLOCK]]) time(2);
    "shared-floor" "forgotten names share a floor of fences":
        names(2) time(2) delays(1)
        clients(&[&[WRITE, UNLOCK, Step::Lock(Write, B), UNLOCK], &[Step::Lock(Write, BOTH), UNLOCK]]);
    "handover" "an agent passes a lock on to another client of its node while another node requests it":
        clients(HANDOVER) client(0, SECOND_OF_FIRST_NODE) time(2);
    "handover-crash" "an agent passes a lock on, and a voter forgets the lock":
        clients(HANDOVER) client(0, SECOND_OF_FIRST_NODE) time(5) voter_crashes(1);
    "handover-lost" "an agent passes a lock on and may crash, and frames are delayed":
        clients(HANDOVER) client(0, SECOND_OF_FIRST_NODE) time(4) delays(2) agent_crashes(1);
    "client-death" "a client dies while it waits or holds, and another client times out":
        clients(&[&[WRITE, Step::Die], &[Step::LockWithin(Write, A, 2), UNLOCK]]) time(3) delays(1);
    "four" "four members": members(4) clients(WRITER_AND_READER) time(1) voter_crashes(1);
    "apart" "four members, and an agent that is not connected to one of them":
        members(4) clients(TWO_WRITERS) apart(&[(0, 0)]) reorders(2) quiescence_every(16);
    "five" "five members": members(5) clients(TWO_WRITERS) time(1);
    "lost-vote" "a lock is held, and one of its voters restarts":
        clients(&[&[WRITE], &[Step::Await(0), WRITE]]) time(3) voter_crashes(1) delays(1);
    "unheard-restart" "a voter restarts, and one of two agents is not connected to it from then on":
        client(0, &[UNHEARD_RESTART, RECONNECT].concat()) client(1, &[Step::Await(0), WRITE]) time(4)
        marks(&[0, 0, 9]) reorders(0) single_delays(false) quiescence_every(256)
        rules(FEW_BATCHES);
    "question" "the voters of a lock change, and all are asked which names have votes":
        clients(CHANGES_VOTERS) time(3) questions(1) answers(units(1)) rules(LONG_LEASES)
        reorders(0) quiescence_every(256);
    "question-crash" "a voter of a lock restarts, and all are asked which names have votes":
        clients(&[&[WRITE]]) apart(&[(0, 2)]) agent(1) time(1) voter_crashes(1) questions(1) reorders(0);
    "guest" "a guest and a member request a lock, and a voter crashes, possibly before it has stored the guests":
        members(2) client(2, &[WRITE, UNLOCK]) client(0, &[WRITE, UNLOCK]) agent(1) time(5) voter_crashes(1)
        slow_guests(true) reorders(1);
    "guest-small" "a guest requests a lock, and a voter crashes, possibly before it has stored that there are guests":
        members(2) client(2, &[WRITE]) agent(0) agent(1) time(1) voter_crashes(1) slow_guests(true) reorders(0);
    "guest-settled" "a guest holds a lock, a voter restarts, and its quarantine lasts for its whole time":
        client(3, &[WRITE]) client(0, &[Step::Await(0), WRITE]) agent(1) agent(2) voter_crashes(1) delays(1)
        apart(&[(3, 2), (0, 0)]) reorders(0) quiescence_every(256);
    "guest-crash" "the agent of a guest crashes, a voter crashes, and frames are delayed":
        members(2) client(2, &[WRITE, UNLOCK]) client(0, &[Step::Await(0), WRITE]) agent(1) time(5) voter_crashes(1)
        agent_crashes(1) delays(1) reorders(0);
    "guest-gone" "a guest unlocks, a voter stores that there are no guests, and crashes":
        members(2) client(2, &[WRITE, UNLOCK]) client(0, &[Step::Later(4), WRITE]) agent(1) time(6) voter_crashes(1)
        reorders(0) rules(SHORT_LEASES);
    "guest-old-disk" "a guest holds a lock, and a voter restarts with an old state file, by which there are no guests":
        client(3, &[WRITE]) client(0, &[Step::Await(0), WRITE]) agent(1) agent(2) time(1) voter_crashes(1) old_disks(1)
        reorders(0);
    "storm-of-guests" "for random walks: three members, two guests, and every fault":
        names(2) reorders(0) quiescence_every(256) slow_guests(true)
        time(100) delays(30) duplicates(5) voter_crashes(3) agent_crashes(2) disconnects(4) downs(4) stalls(3)
        client(3, STORM[0]) client(0, STORM[1]) client(4, STORM[2]) client(1, &[READ, UNLOCK, WRITE, UNLOCK]) agent(2);
    "storm" "for random walks: five members, four clients, two names, and every fault":
        members(5) names(2) reorders(0) quiescence_every(256)
        time(100) delays(30) duplicates(5) voter_crashes(3) agent_crashes(1) disconnects(4) downs(4) stalls(3)
        clients(STORM)
        client(0, &[READ, UNLOCK, WRITE, UNLOCK]);
}
