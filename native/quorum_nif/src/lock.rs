//! The handle of a lock: checks whether it is held, and unlocks it. Both read a few words of memory, which the holders
//! share with the agent's process, and need no call of that process.
//!
//! An unlock without waiting is one NIF call: it marks the lock and sends a message to the agent's process. The VM
//! cannot kill the caller between the two, so no lock stays marked as unlocked without a message.

use crate::clock;
use crate::machine::{Current, Running};
use quorum::lease::{Lease, Standing};
use quorum::message::Token;
use quorum::node_agent::NodeAgent;
use rustler::{Atom, Encoder, Env, LocalPid, Resource, ResourceArc, Term};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

mod atoms {
    rustler::atoms! { full, not_held, ok, unlock_async }
}

/// A lock of this VM: the number of its agent and the token. Each agent counts its tokens from 1, so a token alone
/// would also name a lock of the next agent.
pub(crate) type LockId = (u64, u64);

/// The agent, with the state that other processes read.
pub(crate) struct AgentCell {
    /// The agent's number: 59 random bits, a small integer in Erlang.
    pub(crate) id: u64,
    pub(crate) running: Mutex<Running<NodeAgent>>,
    pub(crate) lease: Arc<Lease>,
    /// Unlocks that are not applied by the agent yet.
    pub(crate) unlocking: AtomicU64,
    /// Applied unlocks that waited for a quorum after the last step.
    pub(crate) pending: AtomicU64,
    pub(crate) most_unlocking: u64,
}

pub(crate) static CURRENT: Current<AgentCell> = Current::none();

impl AgentCell {
    fn is_current(&self) -> bool {
        let current = CURRENT.lock();
        current.as_deref().is_some_and(|agent| ptr::eq(agent, self))
    }

    /// The lock's name outside the agent.
    pub(crate) fn lock_id(&self, token: Token) -> LockId {
        (self.id, token.0)
    }

    /// The token, if the lock is one of this agent.
    pub(crate) fn token(&self, (agent, token): LockId) -> Option<Token> {
        (agent == self.id).then_some(Token(token))
    }

    /// Whether one more lock may be unlocked without waiting.
    fn can_enqueue(&self) -> bool {
        let unlocking = self.unlocking.load(Ordering::Relaxed);
        unlocking + self.pending.load(Ordering::Relaxed) < self.most_unlocking
    }

    /// Counts one more unlock that the agent has not applied yet.
    fn enqueue(&self) {
        self.unlocking.fetch_add(1, Ordering::Relaxed);
    }
}

/// The resource behind the reference in a lock.
pub(crate) struct LockHandle {
    agent: Arc<AgentCell>,
    standing: Arc<Standing>,
    token: Token,
    /// The agent's process.
    process: LocalPid,
    /// Whether a caller has unlocked it. Only one caller succeeds, and the agent may not know yet.
    unlocked: AtomicBool,
}

#[rustler::resource_impl]
impl Resource for LockHandle {}

impl LockHandle {
    pub(crate) fn new(
        agent: Arc<AgentCell>,
        standing: Arc<Standing>,
        token: Token,
        process: LocalPid,
    ) -> LockHandle {
        let unlocked = AtomicBool::new(false);
        LockHandle {
            agent,
            standing,
            token,
            process,
            unlocked,
        }
    }

    fn is_held(&self) -> bool {
        // Acquire: a process that knows of the unlock finds the lock unlocked.
        !self.unlocked.load(Ordering::Acquire) && self.agent.lease.holds(&self.standing, clock::now)
    }
}

/// `is_held(Handle) -> boolean()`
#[rustler::nif]
fn is_held(lock: ResourceArc<LockHandle>) -> bool {
    lock.is_held()
}

/// `id(Handle) -> Id | not_held`: the [`LockId`] by which the agent of this node knows the lock. `not_held` if its
/// agent was ended.
#[rustler::nif]
fn id(env: Env, lock: ResourceArc<LockHandle>) -> Term {
    if lock.agent.is_current() {
        lock.agent.lock_id(lock.token).encode(env)
    } else {
        atoms::not_held().encode(env)
    }
}

/// `mark_unlocked(Handle) -> boolean()`: unlocks without a message, for the agent's process, which unlocks for a
/// waiting caller. `false` if the lock was unlocked before.
#[rustler::nif]
fn mark_unlocked(lock: ResourceArc<LockHandle>) -> bool {
    !lock.unlocked.swap(true, Ordering::AcqRel)
}

/// `unlock_async(Handle) -> ok | not_held | full`: unlocks, and sends `{unlock_async, Id, IsExpired}` to the agent's
/// process. `full` if too many unlocks are pending: the lock is unchanged.
#[rustler::nif]
fn unlock_async(env: Env, lock: ResourceArc<LockHandle>) -> Atom {
    if !lock.agent.can_enqueue() {
        return atoms::full();
    }
    let was_held = lock.is_held();
    if lock.unlocked.swap(true, Ordering::AcqRel) {
        return atoms::not_held();
    }
    // Also if it was not held: the agent may not know that it was lost.
    lock.agent.enqueue();
    let id = lock.agent.lock_id(lock.token);
    // If the process is dead, its locks are lost and need no message.
    let sent = env.send(&lock.process, (atoms::unlock_async(), id, !was_held));
    if sent.is_ok() && was_held {
        atoms::ok()
    } else {
        atoms::not_held()
    }
}
