//! Executes the operations of a batch, one after the other.

use super::granting::Asks;
use super::names::{VoteId, Waiting};
use super::Voter;
use crate::members::Node;
use crate::message::{Fence, Generation, Mode, Names, Op, Priority, Reason, Reply, Token};

impl Voter {
    pub(super) fn apply(&mut self, from: Node, generation: Generation, op: Op) -> Option<Reply> {
        let id = |token| (generation, token);
        match op {
            Op::Lock {
                token,
                mode,
                clock,
                first,
                wait,
                run,
                names,
            } => {
                let agent = self.leases.live(generation).agent;
                let priority = Priority {
                    clock,
                    agent,
                    token: first,
                };
                Some(self.lock(
                    id(token),
                    wait,
                    Waiting {
                        priority,
                        mode,
                        run,
                        names,
                    },
                ))
            }
            Op::Confirm { token, fence } => Some(self.confirm(id(token), fence)),
            Op::Assert {
                token,
                mode,
                fence,
                continues,
                names,
            } => Some(self.assert(id(token), mode, fence, continues, names)),
            Op::Unlock { token, fence } => {
                self.unlock(id(token), fence);
                None
            }
            Op::Sync { from, to, live } => Some(self.sync(generation, from, to, live)),
            // After the batch: see `Voter::batch`.
            Op::Settled { .. } => None,
            Op::Revoke { name } => {
                self.revoke(&name);
                None
            }
            Op::EndAgent { agent } => {
                // An agent cannot end itself.
                if self.leases.live(generation).agent != agent {
                    self.leases.end(from, agent);
                    self.dead(from, agent);
                }
                None
            }
        }
    }

    fn lock(&mut self, id: VoteId, wait: bool, request: Waiting) -> Reply {
        if self.vote(id).is_some() {
            return self.voted(id, &request.names);
        }
        let Waiting { priority, mode, .. } = request;
        let is_blocked = request
            .names
            .iter()
            .any(|name| self.names.is_blocked(name, priority, mode));
        let given = match is_blocked {
            true => Err(Reason::Busy),
            false => self.give(id, &request, Asks::Now),
        };
        match given {
            Ok(fence) => Reply::Yes { fence },
            Err(reason) if !wait => Reply::No { reason },
            Err(_) => {
                self.wait(id, request);
                Reply::No {
                    reason: Reason::Queued,
                }
            }
        }
    }

    fn confirm(&mut self, id: VoteId, fence: Fence) -> Reply {
        let Some(vote) = self.vote(id) else {
            return Reply::Missing;
        };
        let names = vote.names.clone();
        if self.mark_covers(fence) {
            self.names.raise(&names, fence);
        }
        self.voted(id, &names)
    }

    /// A batch names a vote.
    fn voted(&mut self, id: VoteId, names: &Names) -> Reply {
        self.leases.live(id.0).name(id.1);
        let fence = self.names.highest_of(names);
        Reply::Yes { fence }
    }

    fn assert(
        &mut self,
        id: VoteId,
        mode: Mode,
        fence: Fence,
        continues: bool,
        names: Names,
    ) -> Reply {
        let voted = self.vote(id).is_some();
        // An agent that has not learned of this lifetime may still count an earlier vote for one of the names.
        if self.is_quarantined() && !voted && !continues {
            return Reply::No {
                reason: Reason::Quarantine,
            };
        }
        if !voted && !self.serves(id.0) {
            return Reply::No {
                reason: Reason::Storing,
            };
        }
        if !voted && names.iter().any(|name| self.names.conflicts(name, mode)) {
            // Its conflicting votes are of requests that are not granted. They are recalled.
            let agent = self.leases.live(id.0).agent;
            let priority = Priority {
                agent,
                token: id.1,
                ..Priority::OLDEST
            };
            let run = std::num::NonZeroU16::MIN;
            self.names.leave(id);
            self.wait(
                id,
                Waiting {
                    priority,
                    mode,
                    run,
                    names,
                },
            );
            return Reply::No {
                reason: Reason::Queued,
            };
        }
        // The voters that confirmed the fence have recorded it. This one need not if it has no mark for it.
        let records = self.mark_covers(fence);
        let recorded = if records { fence } else { Fence::default() };
        let clock = Priority::OLDEST.clock;
        match voted {
            true => self.names.raise(&names, recorded),
            false => self.add_vote(id, mode, (recorded, clock), names.clone()),
        }
        self.voted(id, &names)
    }

    fn unlock(&mut self, id: VoteId, fence: Fence) {
        let vote = self.leases.live(id.0).remove(id.1);
        let names = match &vote {
            Some(vote) => Some(vote.names.clone()),
            None => self.names.leave(id),
        };
        let Some(names) = names else {
            return;
        };
        // A fence above the stored mark is not recorded here. It need not be: the voters that confirmed it have it.
        if self.mark_covers(fence) {
            self.names.raise(&names, fence);
        }
        if let Some(vote) = vote {
            self.forget_names(id, &vote);
        }
    }

    fn sync(&mut self, generation: Generation, from: Token, to: Token, live: Vec<Token>) -> Reply {
        let is_listed = |token: &Token| live.binary_search(token).is_ok();
        let waiting = self
            .names
            .positions_of(generation, from)
            .take_while(|(_, token)| *token < to);
        for id in waiting
            .filter(|(_, token)| !is_listed(token))
            .collect::<Vec<_>>()
        {
            self.names.leave(id);
        }
        let lease = self.leases.live(generation);
        for token in lease.unlisted(from, to, &live) {
            let vote = self
                .leases
                .live(generation)
                .remove(token)
                .expect("it has a vote");
            self.forget_names((generation, token), &vote);
        }
        let lease = self.leases.live(generation);
        live.iter().for_each(|token| lease.name(*token));
        let missing = live
            .into_iter()
            .filter(|token| lease.vote(*token).is_none());
        Reply::Synced {
            missing: missing.collect(),
        }
    }
}
