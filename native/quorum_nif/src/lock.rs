//! The handle of a lock: checks whether it is held, and releases it. Both read a few words of memory and need no call
//! of the agent's process.
//!
//! A release without waiting is one NIF call: it marks the lock and sends a message to the agent's process. The VM
//! cannot kill the caller between the two, so no lock stays marked as released without a message.

use crate::agent_cell::AgentCell;
use crate::clock;
use quorum::lease::Standing;
use quorum::message::Token;
use rustler::{Atom, Encoder, Env, LocalPid, Resource, ResourceArc, Term};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

mod atoms {
    rustler::atoms! { full, not_held, ok, try_unlock }
}

/// The resource behind the reference in a lock.
pub(crate) struct LockHandle {
    agent: Arc<AgentCell>,
    standing: Arc<Standing>,
    token: Token,
    /// The agent's process.
    process: LocalPid,
    /// Whether a caller has released it. Only one caller succeeds, and the agent may not know yet.
    released: AtomicBool,
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
        let released = AtomicBool::new(false);
        LockHandle {
            agent,
            standing,
            token,
            process,
            released,
        }
    }

    fn is_held(&self) -> bool {
        // Acquire: a process that knows of the release finds the lock released.
        !self.released.load(Ordering::Acquire) && self.agent.lease.holds(&self.standing, clock::now)
    }
}

/// `held(Handle) -> boolean()`
#[rustler::nif]
fn held(lock: ResourceArc<LockHandle>) -> bool {
    lock.is_held()
}

/// `token(Handle) -> Token | not_held`: the token by which the agent of this node knows the lock. `not_held` if its
/// agent was ended.
#[rustler::nif]
fn token(env: Env, lock: ResourceArc<LockHandle>) -> Term {
    if lock.agent.is_current() {
        lock.token.0.encode(env)
    } else {
        atoms::not_held().encode(env)
    }
}

/// `claim(Handle) -> boolean()`: marks the lock as released, for the agent's process, which releases it for a waiting
/// caller. `false` if `give_back` marked it first: its message is in the mailbox.
#[rustler::nif]
fn claim(lock: ResourceArc<LockHandle>) -> bool {
    !lock.released.swap(true, Ordering::AcqRel)
}

/// `give_back(Handle) -> ok | not_held | full`: releases the lock. The agent's process gets the message `{try_unlock,
/// Token}`. `full` if too many unlocks wait for a quorum: the lock is unchanged.
#[rustler::nif]
fn give_back(env: Env, lock: ResourceArc<LockHandle>) -> Atom {
    if !lock.agent.can_enqueue() {
        return atoms::full();
    }
    let was_held = lock.is_held();
    if lock.released.swap(true, Ordering::AcqRel) {
        return atoms::not_held();
    }
    // Also if it was not held: the agent may not know that it was lost.
    lock.agent.enqueue();
    // If the process is dead, its locks are lost and need no message.
    let sent = env.send(&lock.process, (atoms::try_unlock(), lock.token.0));
    if sent.is_ok() && was_held {
        atoms::ok()
    } else {
        atoms::not_held()
    }
}
