//! Shared keys: random histories of one key against a model, a storm in which the share changes, and the limits.

use crate::common::*;
use permit_table::{pin, Acquired, Capacity, Share, ShareUse, WaitEnd, Waited};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const KEY: u64 = 7;
const HOLDERS: u64 = 4;

/// No capacity was passed.
const NONE: u64 = u64::MAX;

#[derive(Clone, Debug)]
enum Call {
    Acquire {
        holder: u64,
        permits: u64,
        capacity: u64,
    },
    Wait {
        holder: u64,
        permits: u64,
        capacity: u64,
    },
    Release {
        holder: u64,
        permits: u64,
    },
    Give {
        giver: u64,
        target: u64,
        permits: u64,
    },
    /// The share ends.
    End,
    Lose {
        holder: u64,
    },
    Cancel {
        nth: usize,
    },
    Die {
        holder: u64,
    },
    Set {
        share: u64,
        passed: u64,
        limit: u64,
    },
    /// By a call for keys that are not shared.
    AcquireLocal,
    Look,
    Sweep,
}

fn call() -> impl Strategy<Value = Call> {
    let holder = 0..HOLDERS;
    let ask = (holder.clone(), 1..4u64, 2..5u64);
    prop_oneof![
        4 => ask.clone().prop_map(|(holder, permits, capacity)| Call::Acquire { holder, permits, capacity }),
        4 => ask.prop_map(|(holder, permits, capacity)| Call::Wait { holder, permits, capacity }),
        4 => (holder.clone(), 1..3u64).prop_map(|(holder, permits)| Call::Release { holder, permits }),
        1 => (holder.clone(), holder.clone(), 1..3u64)
            .prop_map(|(giver, target, permits)| Call::Give { giver, target, permits }),
        2 => Just(Call::End),
        3 => holder.clone().prop_map(|holder| Call::Lose { holder }),
        2 => (0..4usize).prop_map(|nth| Call::Cancel { nth }),
        1 => holder.prop_map(|holder| Call::Die { holder }),
        3 => (0..6u64, 2..5u64).prop_map(|(share, of)| Call::Set { share, passed: of, limit: of }),
        1 => (0..6u64, 2..5u64, 1..5u64).prop_map(|(share, passed, limit)| Call::Set { share, passed, limit }),
        1 => Just(Call::AcquireLocal),
        4 => Just(Call::Look),
        1 => Just(Call::Sweep),
    ]
}

#[derive(Debug)]
struct Waiter {
    request: u64,
    holder: u64,
    permits: u64,
    collected: u64,
}

/// The key, if it is in the table.
#[derive(Debug, Default)]
struct Model {
    is_present: bool,
    passed: u64,
    /// Of the requests that wait.
    limit: u64,
    share: u64,
    held: BTreeMap<u64, u64>,
    /// Of the permits that are held, those that are not in use.
    lost: BTreeMap<u64, u64>,
    queue: Vec<Waiter>,
    was_refused: bool,
    is_used: bool,
    /// Requests wait, or have waited since the last look. What they collect counts as used.
    has_waited: bool,
    granted: Vec<(u64, WaitEnd)>,
}

impl Model {
    fn in_use(&self) -> u64 {
        let valid = self.held.values().sum::<u64>() - self.lost.values().sum::<u64>();
        valid + self.queue.iter().map(|of| of.collected).sum::<u64>()
    }

    /// Lost permits leave a holder first. Returns how many of them are lost.
    fn take(&mut self, holder: u64, permits: u64) -> u64 {
        *self.held.entry(holder).or_default() -= permits;
        let lost = self.lost.entry(holder).or_default();
        let taken = permits.min(*lost);
        *lost -= taken;
        taken
    }

    fn has_ended(&self) -> bool {
        self.is_present && self.share == 0 && self.passed == NONE
    }

    fn acquire(&mut self, holder: u64, permits: u64, capacity: u64) -> Option<Acquired> {
        if !self.is_present || capacity != self.passed {
            return None;
        }
        let in_use = self.in_use() + permits;
        if in_use <= self.share && permits <= capacity {
            *self.held.entry(holder).or_default() += permits;
            self.is_used = true;
            return Some(Acquired::Permit(in_use));
        }
        Some(Acquired::Full)
    }

    fn return_collected(&mut self) {
        self.queue
            .iter_mut()
            .for_each(|waiter| waiter.collected = 0);
    }

    fn settle(&mut self) {
        while let Some(next) = self.queue.iter().position(|of| of.permits <= self.limit) {
            let free = self.share.saturating_sub(self.in_use());
            let waiter = &mut self.queue[next];
            let taken = free.min(waiter.permits - waiter.collected);
            waiter.collected += taken;
            if waiter.collected < waiter.permits {
                break;
            }
            let Waiter {
                request,
                holder,
                permits,
                ..
            } = self.queue.remove(next);
            *self.held.entry(holder).or_default() += permits;
            self.granted
                .push((request, WaitEnd::Granted(self.in_use())));
        }
    }

    fn share(&self) -> Option<ShareUse> {
        let candidates = || self.queue.iter().filter(|of| of.permits <= self.limit);
        // Behind a candidate, requests that need too much are not known.
        let first = self.queue.iter().position(|of| of.permits <= self.limit);
        let from = first.unwrap_or(self.queue.len());
        let need = self.queue[from..]
            .iter()
            .map(|of| of.permits - of.collected);
        let passed = (self.passed != NONE).then(|| Capacity::of(self.passed, 1));
        self.is_present.then(|| ShareUse {
            share: self.share,
            passed,
            in_use: self.in_use(),
            waiting: self.queue.len(),
            need: need.sum(),
            next: candidates().next().map_or(0, |of| of.permits),
            was_refused: self.was_refused,
            was_used: self.is_used && self.share > 0,
        })
    }
}

fn play(calls: Vec<Call>) {
    let (table, mailbox) = (Table::new(8).unwrap(), Mailbox::default());
    let mut model = Model::default();
    for (request, call) in calls.into_iter().enumerate() {
        let request = request as u64;
        let is_death = matches!(call, Call::Die { .. });
        let mut dead = Vec::new();
        match call {
            Call::Acquire {
                holder: of,
                permits,
                capacity,
            } => {
                let expected = model.acquire(of, permits, capacity);
                if expected == Some(Acquired::Full) && permits <= capacity {
                    model.was_refused = true;
                }
                let acquired = acquire_shared(&table, holder(of), KEY, demand(permits, capacity));
                assert_eq!(acquired, expected);
            }
            Call::Wait {
                holder: of,
                permits,
                capacity,
            } => {
                let expected = match model.acquire(of, permits, capacity) {
                    Some(Acquired::Permit(in_use)) => Waited::Permit(in_use),
                    Some(Acquired::Full) if permits > capacity => Waited::Full,
                    Some(Acquired::Full) => {
                        let holder = of;
                        if model.queue.is_empty() {
                            model.limit = u64::MAX;
                            model.is_used = true;
                        }
                        model.has_waited = true;
                        let collected = 0;
                        model.queue.push(Waiter {
                            request,
                            holder,
                            permits,
                            collected,
                        });
                        Waited::Waiting
                    }
                    None => Waited::Declare,
                };
                let ask = ask(&mailbox, request, demand(permits, capacity));
                assert_eq!(wait_shared(&table, holder(of), KEY, ask), expected);
            }
            Call::Release {
                holder: of,
                permits,
            } => {
                let held = model.held.get(&of).copied().unwrap_or(0);
                let released = release_many(&table, holder(of), KEY, permits);
                assert_eq!(released.is_ok(), held >= permits);
                if released.is_ok() {
                    model.take(of, permits);
                }
            }
            Call::Give {
                giver,
                target,
                permits,
            } => {
                let held = model.held.get(&giver).copied().unwrap_or(0);
                let given = give(&table, holder(giver), holder(target), KEY, permits);
                assert_eq!(given == permit_table::Given::Given, held >= permits);
                if held >= permits {
                    let mut lost = model.take(giver, permits);
                    if model.has_ended() && giver != target {
                        lost = permits;
                    }
                    *model.held.entry(target).or_default() += permits;
                    *model.lost.entry(target).or_default() += lost;
                }
            }
            Call::End => {
                let in_use = end_share(&table, KEY);
                model.return_collected();
                (model.share, model.passed, model.limit) = (0, NONE, 0);
                model.is_present = true;
                model.is_used = true;
                assert_eq!(in_use, model.in_use());
            }
            Call::Lose { holder: of } => {
                let mut lost = 0;
                if model.has_ended() && table.knows(holder(of)) {
                    // Also without permits: for the sweep, the key was used.
                    model.is_used = true;
                    let held = model.held.get(&of).copied().unwrap_or(0);
                    lost = held - model.lost.insert(of, held).unwrap_or(0);
                }
                assert_eq!(lose(&table, holder(of), KEY), lost);
            }
            Call::Cancel { nth } => {
                if let Some(waiter) = model.queue.get(nth) {
                    assert!(cancel(&table, holder(waiter.holder), waiter.request));
                    model.queue.remove(nth);
                }
            }
            Call::Die { holder: of } => {
                die(&table, holder(of));
                model.held.remove(&of);
                model.lost.remove(&of);
                // Until the last of them has ended, it can be granted what the others had collected.
                let all = std::mem::take(&mut model.queue).into_iter();
                let (own, others): (Vec<_>, _) = all.partition(|waiter| waiter.holder == of);
                model.queue = others;
                dead.extend(own.iter().map(|waiter| waiter.request));
            }
            Call::AcquireLocal if model.is_present => {
                assert_eq!(acquire(&table, holder(1), KEY, u64::MAX), None);
            }
            Call::AcquireLocal => {}
            Call::Set {
                share,
                passed,
                limit,
            } => {
                let in_use = set_passed(&table, KEY, share, passed, limit);
                model.return_collected();
                (model.share, model.passed, model.limit) = (share, passed, limit);
                model.is_present = true;
                model.is_used |= share == 0;
                model.settle();
                assert_eq!(in_use, model.in_use());
            }
            Call::Look => {
                let (seen, mut expected) = (share(&table, KEY), model.share());
                if let (Some(seen), Some(expected)) = (seen, &mut expected) {
                    expected.was_used |= model.has_waited && seen.was_used;
                }
                assert_eq!(seen, expected);
                model.was_refused = false;
                model.has_waited = !model.queue.is_empty();
                model.is_used &= model.share == 0;
            }
            Call::Sweep => {
                sweep(&table);
                let is_held = model.held.values().sum::<u64>() > 0;
                let is_idle = model.share == 0 && !is_held && model.queue.is_empty();
                if is_idle && !model.is_used && !model.was_refused {
                    model.is_present = false;
                }
                if is_idle {
                    (model.is_used, model.was_refused) = (false, false);
                }
            }
        }
        model.settle();
        let mut told = mailbox.read();
        told.retain(|(request, _)| !dead.contains(request));
        let granted = std::mem::take(&mut model.granted);
        let requests = |of: &[(u64, WaitEnd)]| of.iter().map(|(of, _)| *of).collect::<Vec<_>>();
        assert_eq!(requests(&told), requests(&granted));
        // A death releases permits in several steps.
        assert!(
            is_death || told == granted,
            "{told:?} instead of {granted:?}"
        );
        let held: BTreeMap<_, _> = model.queue.iter().map(|of| (of.holder, of.collected)).fold(
            model.held.clone(),
            |mut held, (holder, collected)| {
                *held.entry(holder).or_default() += collected;
                held
            },
        );
        let held: BTreeMap<_, _> = held
            .into_iter()
            .filter(|(_, permits)| *permits > 0)
            .collect();
        let rows = holders_of(&table, KEY);
        assert_eq!(
            rows.into_iter()
                .map(|((of, _), n)| (of, n))
                .collect::<BTreeMap<_, _>>(),
            held
        );
        let (shares, next) = table
            .shares_after(&pin(), 0, 10)
            .map(|(rows, next)| {
                (
                    rows.iter()
                        .map(|(key, share, in_use)| (key.number(), *share, *in_use))
                        .collect::<Vec<_>>(),
                    next,
                )
            })
            .unwrap();
        let expected = model.is_present.then(|| (KEY, model.share, model.in_use()));
        assert_eq!((shares, next), (expected.into_iter().collect(), None));
        // Not a key of other calls.
        assert_eq!(table.keys_after(&pin(), 0, 10).unwrap().0.len(), 0);
    }
    for of in 0..HOLDERS {
        die(&table, holder(of));
    }
    if model.is_present {
        set_share(&table, KEY, 0, 1);
    }
    assert_empty(&table);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(2000) as u32))]

    /// CP1, CP4: each call does what the model says: also grants, refusals, collected permits, and what the agent sees.
    #[test]
    fn shared_key_agrees_with_the_model(calls in prop::collection::vec(call(), 0..60)) {
        play(calls);
    }
}

/// CP1: the share changes all the time, and at no moment is more in use than the larger of the share and of what its
/// change has reported.
#[test]
fn cp1_storm_of_changes() {
    let table = Table::new(64).unwrap();
    let over = AtomicBool::new(false);
    set_share(&table, KEY, 2, 4);
    storm(&table, 4, |thread| {
        let mut dice = Dice(thread);
        if thread == 0 {
            for _ in 0..rounds(20_000) {
                let share = dice.roll(5);
                let in_use = set_share(&table, KEY, share, 4);
                if dice.roll(8) == 0 {
                    end_share(&table, KEY);
                    for of in 1..4 {
                        lose(&table, holder(of), KEY);
                    }
                    // This is the bound of what follows.
                    set_share(&table, KEY, 0, 4);
                }
                for _ in 0..dice.roll(200) {
                    let now = count(&table, KEY);
                    assert!(
                        now <= share.max(in_use),
                        "{now} in use, share {share}, {in_use}"
                    );
                }
            }
            over.store(true, Ordering::Relaxed);
            set_share(&table, KEY, 4, 4);
            return;
        }
        let mailbox = Mailbox::default();
        let mut request = 0;
        while !over.load(Ordering::Relaxed) {
            let (me, permits) = (holder(thread), 1 + dice.roll(2));
            // Permits that others gave to this one stay for a while.
            if dice.roll(4) == 0 {
                _ = release(&table, me, KEY);
            }
            if dice.roll(2) == 0 {
                if let Some(Acquired::Permit(_)) =
                    acquire_shared(&table, me, KEY, demand(permits, 4))
                {
                    let given = dice.roll(2);
                    let other = holder(1 + dice.roll(3));
                    (0..given).for_each(|_| _ = give(&table, me, other, KEY, 1));
                    if permits > given {
                        release_many(&table, me, KEY, permits - given).unwrap();
                    }
                }
                continue;
            }
            request += 1;
            let has_permits =
                match wait_shared(&table, me, KEY, ask(&mailbox, request, demand(permits, 4))) {
                    Waited::Permit(_) => true,
                    Waited::Waiting => {
                        (0..dice.roll(300)).for_each(|_| std::hint::spin_loop());
                        !cancel(&table, me, request)
                    }
                    // The share has ended.
                    Waited::Declare => false,
                    other => panic!("{other:?}"),
                };
            if has_permits {
                release_many(&table, me, KEY, permits).unwrap();
            }
        }
    });
    (1..4).for_each(|of| _ = die(&table, holder(of)));
    assert_eq!(set_share(&table, KEY, 0, 1), 0);
    assert_empty(&table);
}

/// The parts of the word do not touch each other, and the largest values are not those of a dead key.
#[test]
fn largest_share_and_limit() {
    let table = Table::new(8).unwrap();
    for large in [Share::MAX, Share::MAX + 1, u64::MAX] {
        set_share(&table, KEY, large, large);
        let seen = share(&table, KEY).unwrap();
        assert_eq!((seen.share, seen.in_use), (Share::MAX, 0));
        let more = demand(Share::MAX + 1, large);
        assert_eq!(
            acquire_shared(&table, holder(1), KEY, more),
            Some(Acquired::Full)
        );
        let never = wait_shared(&table, holder(1), KEY, ask(&Mailbox::default(), 1, more));
        assert_eq!(never, Waited::Full);
        assert!(!share(&table, KEY).unwrap().was_refused);
        let of = demand(Share::MAX, large);
        assert_eq!(
            acquire_shared(&table, holder(1), KEY, of),
            Some(Acquired::Permit(Share::MAX))
        );
        assert_eq!(
            acquire_shared(&table, holder(1), KEY, demand(1, large)),
            Some(Acquired::Full)
        );
        assert_eq!(share(&table, KEY).unwrap().in_use, Share::MAX);
        let waited = wait_shared(
            &table,
            holder(2),
            KEY,
            ask(&Mailbox::default(), 1, demand(1, large)),
        );
        assert_eq!(waited, Waited::Waiting);
        let pin = pin();
        // Nothing is passed.
        let limit = Capacity::of(large, 1);
        let unknown = Share::new(large, None, limit);
        let set = table.set_share(&pin, &NameQuery(KEY), &unknown, ());
        assert_eq!(set, Ok((Share::MAX, true)));
        assert_eq!(
            acquire_shared(&table, holder(1), KEY, demand(1, large)),
            None
        );
        sweep(&table);
        assert_eq!(share(&table, KEY).unwrap().passed, None);
        assert_eq!(release_many(&table, holder(1), KEY, Share::MAX), Ok(()));
        assert_eq!(die(&table, holder(2)), 1);
    }
}

/// The same share again changes nothing for a queue, also if it has more requests than one piece passes over.
#[test]
fn same_share_again() {
    let (table, mailbox) = (Table::new(8).unwrap(), Mailbox::default());
    set_share(&table, KEY, 0, 3);
    for request in 0..300 {
        let ask = ask(&mailbox, request, demand(3, 3));
        assert_eq!(wait_shared(&table, holder(1), KEY, ask), Waited::Waiting);
    }
    assert_eq!(set_share(&table, KEY, 1, 2), 0);
    let ask = ask(&mailbox, 300, demand(2, 2));
    assert_eq!(wait_shared(&table, holder(2), KEY, ask), Waited::Waiting);
    let same = Share::new(1, Some(Capacity::of(2, 1)), Capacity::of(2, 1));
    assert_eq!(
        table.set_share(&pin(), &NameQuery(KEY), &same, ()),
        Ok((1, true))
    );
    let needs = share(&table, KEY).map(|of| (of.in_use, of.waiting, of.need, of.next));
    assert_eq!(needs, Some((1, 301, 1, 2)));
}
