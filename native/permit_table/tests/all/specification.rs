//! The sequential specification of one key: its permits by holder, and its requests that wait. `histories.rs` compares
//! each call with it, `linearizable.rs` the answers of concurrent calls.
//!
//! It has no lanes, no word and no permits in hand: what is released is free for a moment, and no call can see it.

use std::collections::BTreeSet;

/// The most processes of a history.
pub const HOLDERS: usize = 6;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    pub request: u64,
    pub holder: usize,
    pub permits: u64,
    pub capacity: u64,
    pub collected: u64,
}

impl Waiter {
    pub fn is_satisfiable(&self) -> bool {
        self.permits <= self.capacity
    }
}

/// A request that was granted, with the number of permits in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub request: u64,
    pub holder: usize,
    pub permits: u64,
    pub out: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OneKey {
    /// Permits that each holder has acquired. It releases and gives these first.
    pub own: [u64; HOLDERS],
    /// Permits that were handed over or given to each holder.
    pub credits: [u64; HOLDERS],
    /// The oldest first.
    pub queue: Vec<Waiter>,
    /// In the order of the grants.
    pub granted: Vec<Grant>,
}

impl OneKey {
    pub fn out(&self) -> u64 {
        let collected = self.queue.iter().map(|waiter| waiter.collected);
        self.own.iter().chain(&self.credits).sum::<u64>() + collected.sum::<u64>()
    }

    /// Without what its requests have collected.
    pub fn held(&self, holder: usize) -> u64 {
        self.own[holder] + self.credits[holder]
    }

    pub fn acquire(&mut self, holder: usize, permits: u64, capacity: u64) -> Option<u64> {
        let out = self.out() + permits;
        (out <= capacity).then(|| {
            self.own[holder] += permits;
            out
        })
    }

    /// Acquires, or begins to wait.
    pub fn wait(
        &mut self,
        request: u64,
        holder: usize,
        permits: u64,
        capacity: u64,
    ) -> Option<u64> {
        let acquired = self.acquire(holder, permits, capacity);
        if acquired.is_none() {
            self.queue.push(Waiter {
                request,
                holder,
                permits,
                capacity,
                collected: 0,
            });
        }
        acquired
    }

    /// Returns false, and changes nothing, if the holder has fewer. Settles nothing.
    pub fn take(&mut self, holder: usize, permits: u64) -> bool {
        let is_held = self.held(holder) >= permits;
        if is_held {
            let own = self.own[holder].min(permits);
            self.own[holder] -= own;
            self.credits[holder] -= permits - own;
        }
        is_held
    }

    /// As [`take`](Self::take).
    pub fn give(&mut self, giver: usize, target: usize, permits: u64) -> bool {
        if giver == target {
            return self.held(giver) >= permits;
        }
        let is_held = self.take(giver, permits);
        if is_held {
            self.credits[target] += permits;
        }
        is_held
    }

    /// Returns whether the request has waited. Settles nothing.
    pub fn end(&mut self, request: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiter| waiter.request != request);
        before > self.queue.len()
    }

    pub fn resize(&mut self, capacity: u64) {
        for waiter in &mut self.queue {
            waiter.capacity = capacity;
            waiter.collected = 0;
        }
        self.settle();
    }

    /// The oldest waiter of each capacity that can be satisfied, by their positions.
    fn candidates(&self) -> Vec<usize> {
        let mut candidates: Vec<usize> = Vec::new();
        for (index, waiter) in self.queue.iter().enumerate() {
            let mut others = candidates.iter();
            let is_first = others.all(|other| self.queue[*other].capacity != waiter.capacity);
            if waiter.is_satisfiable() && is_first {
                candidates.push(index);
            }
        }
        candidates
    }

    /// P11, P12: gives free permits to the candidates. The oldest one collects them. Another one gets all that it
    /// needs, or none.
    pub fn settle(&mut self) {
        loop {
            let out = self.out();
            let candidates = self.candidates();
            let next = candidates.iter().find_map(|&index| {
                let waiter = &self.queue[index];
                let free = waiter.capacity.saturating_sub(out);
                let permits = match waiter.permits - waiter.collected {
                    needed if index == candidates[0] => needed.min(free),
                    needed if needed <= free => needed,
                    _ => 0,
                };
                (permits > 0).then_some((index, permits))
            });
            let Some((index, permits)) = next else {
                return;
            };
            let waiter = &mut self.queue[index];
            waiter.collected += permits;
            if waiter.collected == waiter.permits {
                let waiter = self.queue.remove(index);
                self.credits[waiter.holder] += waiter.permits;
                self.granted.push(Grant {
                    request: waiter.request,
                    holder: waiter.holder,
                    permits: waiter.permits,
                    out: out + permits,
                });
            }
        }
    }

    /// P4: all outcomes of a death, with the number of permits released. Its requests end, in any order. Then its
    /// permits are released. Some of those that it has acquired are in its slot and are released first.
    pub fn deaths(&self, holder: usize) -> Vec<(OneKey, u64)> {
        let ended = self.clone().without_requests(holder).into_iter();
        let released = ended.flat_map(|dead| {
            let (own, held) = (dead.own[holder], dead.held(holder));
            (0..=own).map(move |in_slot| {
                let mut dead = dead.clone();
                dead.own[holder] -= in_slot;
                dead.settle();
                (dead.own[holder], dead.credits[holder]) = (0, 0);
                dead.settle();
                (dead, held)
            })
        });
        released.collect()
    }

    fn without_requests(self, holder: usize) -> Vec<OneKey> {
        let own = self.queue.iter().filter(|waiter| waiter.holder == holder);
        let orders = own.flat_map(|waiter| {
            let mut next = self.clone();
            next.end(waiter.request);
            next.settle();
            next.without_requests(holder)
        });
        let orders: Vec<_> = orders.collect();
        if orders.is_empty() {
            vec![self]
        } else {
            orders
        }
    }

    pub fn assert_invariants(&self) {
        let out = self.out();
        let candidates = self.candidates().into_iter();
        let candidates: Vec<_> = candidates.map(|index| &self.queue[index]).collect();
        for waiter in &candidates {
            let needed = waiter.permits - waiter.collected;
            assert!(out + needed > waiter.capacity, "W1, P12: {self:?}");
        }
        if let Some(oldest) = candidates.first() {
            assert!(out >= oldest.capacity, "W1: {self:?}");
        }
        for waiter in self.queue.iter().filter(|waiter| waiter.collected > 0) {
            let oldest = candidates.first().map(|oldest| oldest.request);
            assert_eq!(oldest, Some(waiter.request), "W4: {self:?}");
        }
    }

    /// P11: this request, or a call (a request with the greatest number), has got its permits. Before that, the queue
    /// was `before`.
    pub fn assert_fifo(&self, before: &[Waiter], request: u64, permits: u64, capacity: u64) {
        let still_waits = |waiter: &Waiter| {
            let mut queue = self.queue.iter();
            queue.any(|other| other.request == waiter.request)
        };
        let mut first = BTreeSet::new();
        for older in before.iter().filter(|waiter| waiter.request < request) {
            if !older.is_satisfiable() || !still_waits(older) || !first.insert(older.capacity) {
                continue;
            }
            // Only the first one with a capacity is a candidate. No request with the same capacity overtakes it.
            let is_overtaken = older.capacity == capacity && request < u64::MAX
                || older.capacity >= capacity && older.permits <= permits;
            assert!(!is_overtaken, "P11: {request} before {older:?}");
        }
    }
}
