//! What may happen: clients, frames, time, crashes.

use super::{answers_the_dead, names_token, request, spend, votes_of, Turn};
use crate::model::coverage::CoverPoint;
use crate::model::kept::Kept;
use crate::model::setting::{member, units, Budget, Setting, Step};
use crate::model::state::{AgentSeat, Client, Flight, Phase, VoterSeat, NOW};
use quorum::agent::{Agent, Request};
use quorum::members::Member;
use quorum::message::{Ack, Batch, Fence, Frame, Mode, Names, Op, Token};
use quorum::time::Time;

impl Turn<'_> {
    /// A client's next step; those that have come to nothing are passed over. See
    /// [`step_of`](crate::model::state::State::step_of).
    pub fn step(&mut self, client: usize) {
        let Some(at) = self.state.step_of(self.setting, client) else {
            return;
        };
        let script = &self.setting.scripts[client];
        let seat = self
            .state
            .seat_of(member(script.at))
            .expect("a client lives where an agent does");
        let phase = self.state.clients[client].phase;
        self.state.clients[client].next = at + 1;
        match script.steps[at] {
            Step::Lock(mode, names) => self.ask(seat, client, at, mode, names, u64::MAX),
            Step::LockWithin(mode, names, within) => {
                self.ask(seat, client, at, mode, names, within)
            }
            Step::Unlock => self.give_back(seat, client, at, |agent, token, request| {
                agent.unlock(NOW, token, request)
            }),
            Step::TryUnlock => self.try_give_back(seat, client, at),
            Step::Die => match phase {
                Phase::Idle => {}
                Phase::Asked { step } => {
                    self.state.clients[client].phase = Phase::Idle;
                    self.tell_agent(seat, |agent| agent.cancel(NOW, request(client, step)));
                }
                Phase::Holds { .. } => {
                    self.try_give_back(seat, client, at);
                    self.state.clients[client].phase = Phase::Idle;
                }
                Phase::Returns { .. } => self.state.clients[client].phase = Phase::Idle,
            },
            Step::Revoke(name) => {
                self.tell_agent(seat, |agent| agent.revoke(NOW, Setting::name_of(name)))
            }
            Step::Await(_) | Step::Later(_) => unreachable!("passed over"),
        }
    }

    /// A client that has come to the end of its script and holds something still dies.
    pub fn end(&mut self, client: usize) {
        let seat = self
            .state
            .seat_of(member(self.setting.scripts[client].at))
            .expect("its agent");
        self.try_give_back(seat, client, 99);
        self.state.clients[client].phase = Phase::Idle;
    }

    pub(super) fn ask(
        &mut self,
        seat: usize,
        client: usize,
        step: usize,
        mode: Mode,
        names: &[usize],
        within: u64,
    ) {
        self.state.clients[client].phase = Phase::Asked { step };
        let names =
            Names::new(names.iter().map(|name| Setting::name_of(*name)).collect()).expect("names");
        self.tell_agent(seat, |agent| {
            agent.lock(NOW, request(client, step), names, mode, units(within))
        });
    }

    pub(super) fn try_give_back(&mut self, seat: usize, client: usize, step: usize) {
        self.give_back(seat, client, step, |agent, token, request| {
            agent.try_unlock(NOW, token, request)
        });
    }

    /// From this call on the client does not hold it, whatever the agent makes of it.
    pub(super) fn give_back(
        &mut self,
        seat: usize,
        client: usize,
        step: usize,
        unlock: impl FnOnce(&mut Agent, Token, Request) -> bool,
    ) {
        let Phase::Holds { token, .. } = self.state.clients[client].phase else {
            return;
        };
        self.state.clients[client].past.push(token);
        self.state.clients[client].phase = Phase::Returns { step, token };
        if !self.tell_agent(seat, |agent| unlock(agent, token, request(client, step))) {
            self.note(|| "which it holds no more".into());
            self.state.clients[client].phase = Phase::Idle;
        }
    }

    /// A frame comes, and perhaps will come again.
    pub fn deliver(&mut self, place: usize, again: bool) {
        let flight = self.state.flights[place].clone();
        if again {
            spend(&mut self.state.left.duplicates, 1);
            let counted = self.state.left.delays != Budget::ALWAYS;
            self.state.flights[place].change(|flight| flight.late = counted);
        } else {
            self.state.flights.remove(place);
        }
        match &flight.frame {
            Frame::Batch(batch) => self.deliver_batch(&flight, batch),
            Frame::Floor(_) => self.tell_voter(flight.to, |voter| {
                voter.receive(NOW, flight.from, flight.frame.clone())
            }),
            Frame::Ack(_) | Frame::Notice(_) => {
                let Some(seat) = self.state.seat_of(flight.to) else {
                    return;
                };
                self.tell_agent(seat, |agent| {
                    agent.receive(NOW, flight.from, flight.frame.clone())
                });
            }
        }
    }

    pub(super) fn deliver_batch(&mut self, flight: &Flight, batch: &Batch) {
        let me = flight.to;
        let Some(before) = self.state.voters[me.place()].machine.clone() else {
            return;
        };
        self.tell_voter(me, |voter| {
            voter.receive(NOW, flight.from, flight.frame.clone())
        });
        let Some(after) = self.state.voters[me.place()].machine.clone() else {
            return;
        };
        // Q7, and what a lease that is over takes with it.
        let (had, has) = (votes_of(&before), votes_of(&after));
        for (agent, token) in had.iter().copied() {
            let gone = !has.contains(&(agent, token));
            let over = before.expires(agent).is_none_or(|expires| expires <= NOW);
            let named = agent == batch.agent && names_token(&batch.ops, token);
            if gone && !over && !named {
                self.broke(
                    "Q7",
                    format!(
                        "{me:?} forgot {} of {agent:?}, which nobody gave back",
                        token.0
                    ),
                );
            }
        }
        // Q4. One batch may ask for a vote, and tell that the lock is held since.
        for (agent, token) in has.iter().copied() {
            let new = !had.contains(&(agent, token));
            let locked = batch
                .ops
                .iter()
                .all(|op| !matches!(op, Op::Assert { token: held, .. } if *held == token));
            if new && locked && !before.is_voting() && !after.is_voting() {
                self.broke(
                    "Q4",
                    format!(
                        "{me:?} gave a vote to {} of {agent:?} in quarantine",
                        token.0
                    ),
                );
            }
        }
        let asserts = batch
            .ops
            .iter()
            .filter(|op| matches!(op, Op::Assert { .. }))
            .count();
        if asserts > 0 && !before.is_voting() {
            self.coverage.count(CoverPoint::AssertedInQuarantine);
        }
    }

    /// The next frame is not the next.
    pub fn defer(&mut self, place: usize) {
        spend(&mut self.state.left.defers, 1);
        let flight = self.state.flights.remove(place);
        self.state.flights.push(flight);
    }

    /// The next frame is late.
    pub fn hold_back(&mut self, place: usize) {
        spend(&mut self.state.left.delays, 1);
        self.state.flights[place].change(|flight| flight.late = true);
    }

    /// One unit of time. What is in flight is late from now on.
    pub fn pass(&mut self) {
        spend(&mut self.state.left.time, 1);
        let counted = self.state.left.delays != Budget::ALWAYS;
        let oldest =
            -i64::try_from(self.setting.rules.holder_lease.as_nanos()).expect("a small rule");
        let mut late = 0;
        for flight in &mut self.state.flights {
            late += u8::from(!flight.late);
            flight.change(|flight| {
                flight.late = counted;
                match &mut flight.frame {
                    Frame::Batch(Batch { stamp, .. }) | Frame::Ack(Ack { stamp, .. }) => {
                        *stamp = Time((stamp.0 - 1).max(oldest));
                    }
                    Frame::Notice(_) | Frame::Floor(_) => {}
                }
            });
        }
        spend(&mut self.state.left.delays, late);
        for seat in &mut self.state.agents {
            seat.machine.change(|agent| agent.rebase(Time(1)));
        }
        for seat in &mut self.state.voters {
            if let Some(machine) = &mut seat.machine {
                machine.change(|voter| voter.rebase(Time(1)));
            }
        }
        for place in 0..self.setting.members {
            if !self.state.voters[place].late {
                self.tick_voter(member(place));
            }
        }
        for seat in 0..self.state.agents.len() {
            if !self.state.agents[seat].late {
                self.tick_agent(seat);
            }
        }
    }

    /// An agent is not scheduled from now on; or it is, again.
    pub fn agent_late(&mut self, seat: usize, late: bool) {
        self.state.agents[seat].late = late;
        if late {
            spend(&mut self.state.left.lates, 1);
        } else {
            self.tick_agent(seat);
        }
    }

    /// A voter is not scheduled from now on; or it is, again.
    pub fn voter_late(&mut self, me: Member, late: bool) {
        self.state.voters[me.place()].late = late;
        if late {
            spend(&mut self.state.left.lates, 1);
        } else {
            self.tick_voter(me);
        }
    }

    /// A voter forgets everything and starts again.
    pub fn crash_voter(&mut self, me: Member) {
        spend(&mut self.state.left.voter_crashes, 1);
        let wall = self.wall();
        let seat = &mut self.state.voters[me.place()];
        seat.life += 1;
        seat.storing = None;
        seat.late = false;
        let stored = seat.stored;
        if stored.is_none() && !self.setting.wall_stands {
            seat.origin = wall;
        }
        self.start_voter(me, stored);
    }

    /// The lowest number that a wall clock may show if it is right: no fence was given past it.
    fn wall(&self) -> Fence {
        let seats = self.state.voters.iter();
        let known = |seat: &VoterSeat| seat.machine.as_ref().map(|voter| voter.highest());
        let highest = seats.map(|seat| known(seat).max(Some(seat.origin)));
        highest.flatten().max().unwrap_or_default()
    }

    /// An agent and its clients are gone, and another agent begins. Clients go on with what is left of their scripts.
    pub fn crash_agent(&mut self, seat: usize) {
        spend(&mut self.state.left.agent_crashes, 1);
        let AgentSeat {
            member,
            life,
            connected,
            ..
        } = self.state.agents[seat];
        let machine = Kept::new(self.new_agent(member, life + 1));
        self.state.agents[seat] = AgentSeat {
            member,
            life: life + 1,
            machine,
            connected,
            late: false,
        };
        for (client, script) in self.state.clients.iter_mut().zip(&self.setting.scripts) {
            if script.at == member.place() {
                *client = Client {
                    next: client.next,
                    ..Client::default()
                };
            }
        }
        // Answers to the one that is gone: nobody will ever look at them. That is no loss, for they would be ignored.
        self.state
            .flights
            .retain(|flight| !answers_the_dead(&flight.frame, flight.to, member, life));
        for other in connected.iter() {
            self.tell_agent(seat, |agent| agent.up(NOW, other));
        }
    }

    /// An agent hears that a member is connected.
    pub fn join(&mut self, seat: usize, other: Member) {
        if !self.setting.meet(self.state.agents[seat].member, other) {
            return;
        }
        let connected = &mut self.state.agents[seat].connected;
        *connected = connected.with(other);
        self.tell_agent(seat, |agent| agent.up(NOW, other));
    }

    /// An agent hears that a member is not connected. What is in flight may come all the same.
    pub fn cut(&mut self, seat: usize, other: Member) {
        spend(&mut self.state.left.cuts, 1);
        let connected = &mut self.state.agents[seat].connected;
        *connected = connected.without(other);
        self.tell_agent(seat, |agent| agent.down(NOW, other));
    }

    /// A mark has been written.
    pub fn stored(&mut self, me: Member) {
        let seat = &mut self.state.voters[me.place()];
        let Some(mark) = seat.storing.take() else {
            return;
        };
        seat.stored = Some(mark);
        self.tell_voter(me, |voter| voter.stored(NOW, mark));
    }

    // --- What machines want done ---
}
