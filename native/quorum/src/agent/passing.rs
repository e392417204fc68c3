//! Passes locks on from one process of this node to the next, with the same votes.
//!
//! ```text
//!   requested         Lock t1 x, run of 16      each voter gives 16 fences
//!   granted           t1, fence 17
//!   unlocked          t2, fence 18              the next request of this node has the lock: no message
//!   unlocked          t3, fence 19
//!   unlocked          Unlock t1, fence 32       the end of the run, or no request waits here
//! ```
//!
//! Voters see one lock, whose fence is the last of the run. That fence is higher than all earlier ones, and a quorum
//! has recorded it before the first lock of the run is granted. The same holds for each fence of the run, and no
//! other writer gets one of them. Each holder has its own lock with its own standing: an unlocked lock is no longer
//! held before the next one is granted. Fences that a run does not use are skipped.
//!
//! A run has a limited length, and after another node has asked for the lock (*recall*) a time limit. The technique is
//! lock cohorting (Dice, Marathe and Shavit, "Lock Cohorting", PPoPP 2012): passing a lock on within a node is cheap.

use super::locks::Unlock;
use super::output::{AgentOutput, Path, Request};
use super::Agent;
use crate::lease::Standing;
use crate::message::Token;
use crate::protocol_bug::ProtocolBug;
use std::sync::Arc;

impl Agent {
    /// The holder unlocks it. It is passed on to the next request of this node if possible; otherwise its
    /// voters get the unlock. `None` if there is no such lock.
    pub(super) fn pass_or_unlock(&mut self, token: Token) -> Option<Unlock> {
        let attempt = self.locks.attempt_of(token)?;
        if let Some(next) = self.next_of_run(attempt) {
            self.pass(attempt, next);
            return Some(Unlock::Passed);
        }
        Some(Unlock::Sent(self.unlock_attempt(attempt)))
    }

    /// The next request for the lock, if it may be passed on. A lock at risk is not passed on, nor one with a vote that
    /// ends soon or one in transition to another list, so that a new holder has it for some time.
    fn next_of_run(&self, attempt: Token) -> Option<Request> {
        let lock = self.locks.get(attempt).expect("it is held");
        let in_time = lock.pass_until.is_none_or(|until| self.now < until);
        let any = self.setup.bugs.have(ProtocolBug::FencesNotTaken);
        let left = in_time && lock.fence < lock.last || any;
        let (standing, lease) = (&lock.standing, &self.locks.lease);
        let until = lease.until(standing.votes(), standing.quorum());
        let mut provisional = standing.provisional().iter();
        let safe = standing.votes_count()
            && until >= self.now + self.setup.rules.at_risk
            && provisional.all(|member| self.is_in_time(member, standing.end()));
        let name = lock.names.single().filter(|_| left && safe)?;
        self.requests.next_writer(name)
    }

    /// Passes a lock on to a request of this node, with its votes.
    fn pass(&mut self, attempt: Token, next: Request) {
        let token = self.next_token();
        let lock = self.locks.get_mut(attempt).expect("it is held");
        self.requests.take_passed(next);
        let standing = Arc::new(Standing::clone(&lock.standing));
        if !self.setup.bugs.have(ProtocolBug::UnlockKeepsHeld) {
            lock.standing.withdraw();
        }
        let before = std::mem::replace(&mut lock.token, token);
        lock.fence = lock.fence.next();
        lock.since = self.now;
        lock.standing = Arc::clone(&standing);
        self.out.push(AgentOutput::Granted {
            request: next,
            token,
            attempt,
            path: Path::Passed,
            fence: lock.fence,
            standing,
        });
        self.locks.index_passed(before, token, attempt);
    }
}
