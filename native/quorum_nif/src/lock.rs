//! A lock in the hands of its holder: is it still mine, and give it back. Both are asked of a few words of memory,
//! without the agent's process.
//!
//! To give a lock back without waiting is one call: it marks the lock and sends the agent's process a message. The
//! caller cannot be killed between the two, so no lock is left that is neither held nor given back.

use crate::agent::AgentCell;
use crate::clock;
use quorum::lease::Standing;
use quorum::message::Token;
use rustler::{Atom, Encoder, Env, LocalPid, Resource, ResourceArc, Term};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

mod atoms {
    rustler::atoms! { full, not_held, ok, try_unlock }
}

/// What stands behind the reference in a lock.
pub(crate) struct LockHandle {
    agent: Arc<AgentCell>,
    standing: Arc<Standing>,
    token: Token,
    /// The process that runs the agent.
    process: LocalPid,
    /// That somebody has given it back, one and no other; the agent may not have heard of it yet.
    gone: AtomicBool,
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
        let gone = AtomicBool::new(false);
        LockHandle {
            agent,
            standing,
            token,
            process,
            gone,
        }
    }

    fn is_held(&self) -> bool {
        // Acquire: whoever has heard that it was given back finds it so.
        !self.gone.load(Ordering::Acquire) && self.agent.lease().holds(&self.standing, clock::now)
    }
}

/// `held(Handle) -> boolean()`
#[rustler::nif]
fn held(lock: ResourceArc<LockHandle>) -> bool {
    lock.is_held()
}

/// `token(Handle) -> Token | not_held`: by which number the agent of this node knows it. One of an agent that was ended
/// is not held.
#[rustler::nif]
fn token(env: Env, lock: ResourceArc<LockHandle>) -> Term {
    if lock.agent.is_current() {
        lock.token.0.encode(env)
    } else {
        atoms::not_held().encode(env)
    }
}

/// `claim(Handle) -> boolean()`: for the agent's process, which is about to give it back for somebody who waits.
/// `false` if `give_back` was earlier: its message is on the way.
#[rustler::nif]
fn claim(lock: ResourceArc<LockHandle>) -> bool {
    !lock.gone.swap(true, Ordering::AcqRel)
}

/// `give_back(Handle) -> ok | not_held | full`: the agent hears of it by a message, `{try_unlock, Token}`. Not if too
/// many wait for a quorum (`full`): then nothing has happened.
#[rustler::nif]
fn give_back(env: Env, lock: ResourceArc<LockHandle>) -> Atom {
    if !lock.agent.has_room() {
        return atoms::full();
    }
    let was_held = lock.is_held();
    if lock.gone.swap(true, Ordering::AcqRel) {
        return atoms::not_held();
    }
    // Also if it was not held: the agent may not know yet.
    lock.agent.enqueue();
    // To a process that is dead, nothing is to be told: its locks are lost.
    let told = env.send(&lock.process, (atoms::try_unlock(), lock.token.0));
    if told.is_ok() && was_held {
        atoms::ok()
    } else {
        atoms::not_held()
    }
}
