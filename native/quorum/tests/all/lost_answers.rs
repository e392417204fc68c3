//! Tests an agent whose answers get lost. The test plays its voters: these cases do not occur in the scenarios.

use quorum::agent::{Agent, AgentOutput, AgentSetup, Request};
use quorum::members::{Member, Members};
use quorum::message::{
    Ack, Batch, Digest, Fence, Frame, Generation, Given, Lifetime, Mode, Name, Notice, Op, Reason,
    Reply, Session, Token, Verdict, VoterState, VoterStatus,
};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use std::time::Duration;

const A: Lifetime = Lifetime(1);

/// Of a voter that votes.
const VOTES: VoterStatus = VoterStatus {
    clock: 0,
    state: VoterState::Voting,
};

struct Alone {
    agent: Agent,
    now: Time,
    /// What the voters say of themselves.
    status: VoterStatus,
    outputs: Vec<AgentOutput>,
    sent: Vec<(usize, Batch)>,
}

impl Alone {
    /// An agent with sessions at all voters that has sent a `Lock` to all.
    fn locking() -> Alone {
        let setup = AgentSetup {
            members: Members::new(3).unwrap(),
            rules: Rules {
                run: 1,
                ..Rules::default()
            },
            bugs: ProtocolBugs::NONE,
            lifetime: A,
        };
        let mut alone = Alone {
            agent: Agent::new(setup, Time(0)),
            now: Time(0),
            status: VOTES,
            outputs: Vec::new(),
            sent: Vec::new(),
        };
        for voter in 0..3 {
            let member = Member::at(voter).unwrap();
            alone.call(|agent, now| agent.up(now, member));
            let settled = alone.begin(voter, session(10 + voter as u64));
            alone.done(voter, &settled, Vec::new(), &[]);
        }
        let (name, soon) = (name("a"), Duration::from_secs(5));
        alone.call(|agent, now| agent.lock(now, Request(1), name.into(), Mode::Write, soon));
        alone
    }

    fn call(&mut self, call: impl FnOnce(&mut Agent, Time)) {
        call(&mut self.agent, self.now);
        self.agent.flush(self.now);
        for output in self.agent.outputs() {
            match output {
                AgentOutput::Send(send) => match send.frame {
                    Frame::Batch(batch) => {
                        self.sent.push((send.to.member().unwrap().place(), batch))
                    }
                    other => panic!("{other:?}"),
                },
                other => self.outputs.push(other),
            }
        }
    }

    fn wait(&mut self, span: Duration) {
        self.now = self.now + span;
        self.call(|agent, now| agent.tick(now));
    }

    /// Takes the last batch to `voter`.
    fn batch(&mut self, voter: usize) -> Batch {
        let place = self.sent.iter().rposition(|(to, _)| *to == voter);
        self.sent.remove(place.expect("a batch")).1
    }

    fn answer(&mut self, voter: usize, batch: &Batch, session: Session, verdict: Verdict) {
        let (seq, stamp) = (batch.seq, batch.stamp);
        let ack = Ack {
            status: self.status,
            agent: A,
            session,
            seq,
            stamp,
            verdict,
        };
        let from = Member::at(voter).unwrap();
        self.call(|agent, now| agent.receive(now, from, Frame::Ack(ack)));
    }

    /// The voter does not know the session of the batch, and begins `session`.
    fn begin(&mut self, voter: usize, session: Session) -> Batch {
        let batch = self.batch(voter);
        let named = batch.session;
        self.answer(
            voter,
            &batch,
            session,
            Verdict::Mismatch {
                named,
                others: Vec::new(),
            },
        );
        self.batch(voter)
    }

    /// The voter gives a vote unasked, after it has executed the batch `seq`.
    fn given(&mut self, voter: usize, seq: u64, token: Token, fence: u64) {
        let fence = Fence(fence);
        let notice = Notice {
            voter: Lifetime(10 + voter as u64),
            generation: Generation(1),
            seq,
            status: VOTES,
            given: vec![Given { token, fence }],
            recalls: Vec::new(),
            wants_batch: false,
        };
        let from = Member::at(voter).unwrap();
        self.call(|agent, now| agent.receive(now, from, Frame::Notice(notice)));
    }

    fn done(&mut self, voter: usize, batch: &Batch, replies: Vec<Reply>, votes: &[Token]) {
        let digest = votes
            .iter()
            .fold(Digest::default(), |digest, token| digest.with(*token));
        let verdict = Verdict::Done {
            replies,
            digest,
            revoked: Vec::new(),
        };
        self.answer(voter, batch, batch.session.unwrap(), verdict);
    }
}

fn session(voter: u64) -> Session {
    Session {
        voter: Lifetime(voter),
        generation: Generation(1),
    }
}

fn name(bytes: &str) -> Name {
    Name::new(bytes.as_bytes()).unwrap()
}

/// Found by the simulation. A voter in a new session received an `Assert` of a lock, and its answer was lost. The
/// lock was released in the meantime. The voter still has the vote, and its answers must not count for the unlock
/// until it has received the live tokens.
#[test]
fn an_answer_does_not_confirm_unlocks_before_an_unchecked_session_is_synced() {
    let mut alone = Alone::locking();
    for voter in 0..2 {
        let batch = alone.batch(voter);
        let Some(Op::Lock { token, .. }) = batch.ops.first() else {
            panic!("{batch:?}")
        };
        let yes = Reply::Yes { fence: Fence(1) };
        alone.done(voter, &batch, vec![yes], &[*token]);
    }
    let Some(AgentOutput::Granted { token, .. }) = alone.outputs.pop() else {
        panic!("not granted")
    };

    // Voter 2 is asked for its vote, and begins a new session. It receives the lock, and its answer is lost.
    alone.wait(Rules::default().heartbeat);
    for voter in 0..2 {
        let batch = alone.batch(voter);
        alone.done(voter, &batch, Vec::new(), &[token]);
    }
    let lost = alone.begin(2, session(22));
    let asserts = matches!(lost.ops[..], [Op::Assert { .. }, Op::Settled { .. }]);
    assert!(asserts, "{lost:?}");
    // The lock is released. Voter 0 removes its vote, and voter 1 no longer answers.
    alone.call(|agent, now| assert!(agent.unlock(now, token, Request(2))));
    let batch = alone.batch(0);
    alone.done(0, &batch, Vec::new(), &[]);
    alone.wait(Rules::default().attempt);
    // Another operation is in flight to voter 2 when its next answer arrives.
    alone.call(|agent, now| agent.revoke(now, name("b")));
    let mut synced = false;
    while !synced {
        let batch = alone.batch(2);
        synced = batch.ops.iter().any(|op| matches!(op, Op::Sync { .. }));
        let replies = match synced {
            true => vec![Reply::Synced {
                missing: Vec::new(),
            }],
            false => Vec::new(),
        };
        let outputs = &alone.outputs;
        assert!(
            outputs.is_empty(),
            "voter 2 still has the vote: {outputs:?}"
        );
        alone.done(2, &batch, replies, &[token]);
    }
    let unlocked = |output: &AgentOutput| {
        matches!(
            output,
            AgentOutput::Unlocked {
                request: Request(2),
                confirmed: true
            }
        )
    };
    assert!(alone.outputs.iter().any(unlocked), "{:?}", alone.outputs);
}

/// Two voters agreed on a fence, and one of them forgot its vote. Another writer may have got a higher fence since.
/// The third voter knows that fence.
#[test]
fn an_agreed_fence_is_void_when_one_of_its_votes_is_lost() {
    let mut alone = Alone::locking();
    let batches: Vec<Batch> = (0..3).map(|voter| alone.batch(voter)).collect();
    let Some(Op::Lock { token, .. }) = batches[0].ops.first() else {
        panic!("{batches:?}")
    };
    let token = *token;
    let yes = |fence| {
        vec![Reply::Yes {
            fence: Fence(fence),
        }]
    };
    alone.done(0, &batches[0], yes(7), &[token]);
    // 7 is agreed, and voter 1 has to record it, but crashes first.
    alone.done(1, &batches[1], yes(6), &[token]);
    let settled = alone.begin(1, session(21));
    alone.done(1, &settled, Vec::new(), &[]);
    // Voters 1 and 2 have since granted 8 to another agent, which has released it.
    alone.done(2, &batches[2], yes(9), &[token]);
    for voter in [0, 2, 1] {
        let confirms = |(to, batch): &(usize, Batch)| {
            *to == voter && batch.ops.iter().any(|op| matches!(op, Op::Confirm { .. }))
        };
        if alone.sent.iter().any(confirms) {
            let batch = alone.batch(voter);
            alone.done(voter, &batch, yes(9), &[token]);
        }
    }
    for output in &alone.outputs {
        if let AgentOutput::Granted { fence, .. } = output {
            assert!(*fence >= Fence(9), "granted {fence:?} after 8");
        }
    }
}

/// Found by the simulation. A batch has a `Sync` and the `Lock` of a new request. The voter misses its vote, queues it,
/// and gives it the vote, and the notice of that arrives before the answer.
#[test]
fn an_answer_takes_no_vote_that_was_given_later() {
    let mut alone = Alone::locking();
    let yes = || Reply::Yes { fence: Fence(1) };
    let queued = || Reply::No {
        reason: Reason::Queued,
    };
    for voter in [0, 2] {
        let batch = alone.batch(voter);
        alone.done(voter, &batch, vec![queued()], &[]);
    }
    // By its digest, voter 1 has lost something. It revokes the vote, so the request begins again.
    let batch = alone.batch(1);
    let Some(Op::Lock { token: first, .. }) = batch.ops.first() else {
        panic!("{batch:?}")
    };
    let verdict = Verdict::Done {
        replies: vec![yes()],
        digest: Digest::default(),
        revoked: vec![*first],
    };
    alone.answer(1, &batch, session(11), verdict);
    let batch = alone.batch(1);
    let [Op::Sync { .. }, Op::Unlock { .. }, Op::Lock { token, .. }] = batch.ops[..] else {
        panic!("{batch:?}")
    };
    alone.given(1, batch.seq, token, 1);
    let asked = alone.batch(0);
    alone.done(0, &asked, vec![yes()], &[token]);
    let granted = |output: &AgentOutput| matches!(output, AgentOutput::Granted { .. });
    assert!(alone.outputs.iter().any(granted), "{:?}", alone.outputs);
    let missing = Reply::Synced {
        missing: vec![token],
    };
    alone.done(1, &batch, vec![missing, queued()], &[]);
    let lost = |output: &AgentOutput| matches!(output, AgentOutput::Lost { .. });
    assert!(!alone.outputs.iter().any(lost), "{:?}", alone.outputs);
}

/// A voter takes a vote back, which the agent confirms too late, and gives it again. The notice of that arrives before
/// the answer to the confirmation.
#[test]
fn a_late_confirmation_takes_no_vote_that_was_given_later() {
    let mut alone = Alone::locking();
    let batches = [0, 1].map(|voter| alone.batch(voter));
    let Some(Op::Lock { token, .. }) = batches[1].ops.first() else {
        panic!("{batches:?}")
    };
    let token = *token;
    let queued = || Reply::No {
        reason: Reason::Queued,
    };
    (0..2).for_each(|voter| alone.done(voter, &batches[voter], vec![queued()], &[]));
    alone.given(1, batches[1].seq, token, 1);
    alone.wait(Rules::default().wait);
    let [heartbeat, confirm] = [0, 1].map(|voter| alone.batch(voter));
    assert!(matches!(confirm.ops[..], [Op::Confirm { .. }]));
    alone.given(1, confirm.seq, token, 3);
    alone.done(1, &confirm, vec![Reply::Missing], &[]);
    alone.done(0, &heartbeat, Vec::new(), &[]);
    assert!(alone.outputs.is_empty(), "{:?}", alone.outputs);
    alone.given(0, heartbeat.seq, token, 3);
    let granted = alone.outputs.pop();
    assert!(
        matches!(granted, Some(AgentOutput::Granted { fence, .. }) if fence == Fence(3)),
        "{granted:?}"
    );
    // Both votes are confirmed, and the lock stays.
    alone.wait(Rules::default().wait / 2);
    for voter in 0..2 {
        let batch = alone.batch(voter);
        assert!(matches!(batch.ops[..], [Op::Confirm { .. }]));
        let yes = Reply::Yes { fence: Fence(3) };
        alone.done(voter, &batch, vec![yes], &[token]);
    }
    alone.wait(Rules::default().wait);
    assert!(alone.outputs.is_empty(), "{:?}", alone.outputs);
}
