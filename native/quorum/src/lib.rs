//! Read/write locks by quorum: the two state machines of each node, without input or output.
//!
//! # The map
//!
//! ```text
//!   agent.rs     locks for the processes of its node         voter.rs     has a vote for each name
//!     lines        who of this node is next                    leases       agents, and what they have votes for
//!     asking       from a request to a lock                    names        who has a name, who waits for it
//!     talking      batches, and their answers                  floors       fences of names that are forgotten
//!     peer         what a voter has been told                  learning     fences of earlier lives that are lost
//!     locks        what is held, and until when                ops          what is done of a batch
//!     unlocks      how far a quorum has come
//!                    |              '----- message.rs ---------- '
//!                lease.rs            what they say; frame.rs: as bytes
//!      is it held? for any thread
//! ```
//!
//! `members.rs` is who takes part, `rules.rs` the constants, `time.rs` the time as they are told it. `protocol_bug.rs`
//! has ways of being wrong, for the tests that must notice; elsewhere it is a constant no.
//!
//! Read `docs/quorum.md` first: the protocol, why it is right and what it cannot promise. Then `voter.rs` and
//! `agent.rs`, whose heads have their invariants (V1…, G1…), and `lease.rs` (L1 to L3).
//!
//! Both machines are called with the time and an event, and asked for what they want done:
//!
//! ```
//! use quorum::agent::{Agent, AgentOutput, AgentSetup, Request};
//! use quorum::members::{Member, Members};
//! use quorum::message::{Fence, Frame, Incarnation, Mode, Name};
//! use quorum::rules::Rules;
//! use quorum::time::Time;
//! use quorum::voter::{Fences, Voter, VoterOutput, VoterSetup};
//! use quorum::protocol_bug::Weaknesses;
//! use std::time::Duration;
//!
//! // A cluster of one.
//! let (members, rules, bugs) = (Members::new(1, 0).unwrap(), Rules::default(), Weaknesses::NONE);
//! let me = Member::at(0).unwrap();
//! let now = Time(0);
//! let mut agent = Agent::new(AgentSetup { members, rules, bugs, incarnation: Incarnation(1), seed: 1 }, now);
//! let fences = Fences { floor: None, origin: Fence(1_700_000_000_000_000), durable: false };
//! let mut voter = Voter::new(VoterSetup { members, rules, bugs, incarnation: Incarnation(2), fences }, now);
//!
//! agent.up(now, me);
//! agent.lock(now, Request(1), Name::new(b"x").unwrap().into(), Mode::Write, Duration::from_secs(5));
//! let granted = 'granted: loop {
//!     for output in voter.outputs() {
//!         let VoterOutput::Send(send) = output else { continue };
//!         agent.receive(now, me, send.frame);
//!     }
//!     agent.flush(now);
//!     for output in agent.outputs() {
//!         match output {
//!             AgentOutput::Send(send) => voter.receive(now, me, send.frame),
//!             AgentOutput::Granted { token, standing, .. } => break 'granted (token, standing),
//!             other => panic!("{other:?}"),
//!         }
//!     }
//! };
//! let (token, standing) = granted;
//! assert!(agent.held(token, now));
//! // What any thread can ask.
//! assert!(agent.lease().holds(&standing, || now));
//! ```
//!
//! # What comes from elsewhere, and why
//! - `postcard`, `serde`: the wire format, which is written down and has a specification of its own.

#![forbid(unsafe_code)]

pub mod agent;
pub mod frame;
pub mod lease;
pub mod members;
pub mod message;
pub mod protocol_bug;
pub mod rules;
mod sync;
pub mod time;
pub mod voter;
