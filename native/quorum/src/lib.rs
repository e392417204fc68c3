//! Quorum read/write locks: the two state machines that run on each node. They do no I/O and read no clock.
//!
//! # Map of the files
//!
//! ```text
//!   agent.rs     locks for the processes of its node     voter.rs     votes for names
//!     exchange     batches and their answers               ops          executes the operations of a batch
//!     asking       from a request to a lock and its end    granting     gives votes, asked or unasked
//!     passing      passes a lock on within the node        names        holders and queue of each name
//!     request      the votes of one request                leases       the lease and the votes of each agent
//!     requests     all requests; queues: their order       floors       fences of forgotten names
//!     locks        held locks and their leases             mark, guests what is stored: of fences, of clients
//!     link         what one voter was sent                 lives        finds out whether the state file is old
//!     unlocks      unlocks that voters have executed       quarantine   the agents that it waits for
//!     adoption     takes another list of members           views        what a change of the members needs
//!     transition   locks held under the list before        status       what it reports to the agents
//!                    |              '----- message.rs ---------- '
//!                lease.rs            messages; frame.rs: their encoding
//!      is a lock held? for any thread
//! ```
//!
//! `node_agent.rs` adds the names of nodes and the numbers of views to the agent.
//!
//! `members.rs` defines the member list, `rules.rs` the constants, `time.rs` the time that callers pass in, `bounds.rs`
//! the limits of frames. `protocol_bug.rs` lists protocol bugs that a model can enable; in other builds each check is
//! the constant `false`.
//!
//! Read `docs/quorum.md` first. It describes the protocol, why it is correct, and its limits. Then read
//! `message.rs`, `voter.rs` and `agent.rs`, whose heads state their invariants (V1…, G1…), and `lease.rs` (L1 to L4).
//!
//! A caller passes the time and an event to a machine, then collects the machine's outputs:
//!
//! ```
//! use quorum::agent::{Agent, AgentOutput, AgentSetup, Request};
//! use quorum::members::{Member, Members};
//! use quorum::message::{Fence, Frame, Lifetime, Mode, Name};
//! use quorum::rules::Rules;
//! use quorum::time::Time;
//! use quorum::voter::{Voter, VoterOutput, VoterSetup};
//! use quorum::protocol_bug::ProtocolBugs;
//! use std::time::Duration;
//!
//! // A cluster of one member.
//! let (members, rules, bugs) = (Members::new(1).unwrap(), Rules::default(), ProtocolBugs::NONE);
//! let me = Member::at(0).unwrap();
//! let now = Time(0);
//! let mut agent = Agent::new(AgentSetup { members, rules, bugs, lifetime: Lifetime(1) }, now);
//! let quarantine = rules.voter_lease;
//! let (lifetime, mark) = (Lifetime::new(1, 2), Fence(0));
//! let (durable, guests, begins) = (false, false, false);
//! let setup = VoterSetup { members, me, rules, bugs, lifetime, quarantine, mark, durable, guests, begins };
//! let mut voter = Voter::new(setup, now);
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
//!             AgentOutput::Send(send) => voter.receive(now, me.into(), send.frame),
//!             AgentOutput::Granted { token, standing, .. } => break 'granted (token, standing),
//!             other => panic!("{other:?}"),
//!         }
//!     }
//! };
//! let (token, standing) = granted;
//! assert!(agent.held(token, now));
//! // The same check, possible from any thread.
//! assert!(agent.lease().holds(&standing, || now));
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod agent;
mod bounds;
pub mod envelope;
pub mod frame;
pub mod lease;
pub mod members;
pub mod message;
mod name;
pub mod node_agent;
pub mod node_voter;
pub mod protocol_bug;
pub mod rules;
mod sync;
pub mod time;
pub mod view;
pub mod view_message;
pub mod voter;
