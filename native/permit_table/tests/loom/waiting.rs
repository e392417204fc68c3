//! Models of waiting: requests that wait, and all calls that can end them.

use super::*;
use common::*;
use loom::cell::UnsafeCell;
use permit_table::{pin, WaitEnd, Waited};
use std::collections::BTreeMap;

/// The key of all requests.
const KEY: u64 = 1;

/// A table of four processes, and their mailboxes. Each process makes one request at most.
struct Waiting {
    table: Table,
    mail: [Mailbox; 4],
}

impl Waiting {
    /// Holder 0 has all permits of the capacity.
    fn full(capacity: u64) -> Arc<Self> {
        let table = Table::new(4).unwrap();
        let mail = Default::default();
        let waiting = Self { table, mail };
        assert_eq!(waiting.acquire(0, capacity, capacity), Some(capacity));
        Arc::new(waiting)
    }

    /// The capacity is 2. Process 1 waits for 2 permits and has collected one, holder 0 has the other one, and process
    /// 2 waits for one.
    fn collecting() -> Arc<Self> {
        let waiting = Self::full(2);
        assert_eq!(waiting.wait(1, 2, 2), Waited::Waiting);
        assert_eq!(waiting.wait(2, 1, 2), Waited::Waiting);
        waiting.release(0, 1);
        waiting.assert_held(&[(0, 1), (1, 1)], 2);
        waiting
    }

    fn acquire(&self, process: u64, permits: u64, capacity: u64) -> Option<u64> {
        acquire_many(&self.table, holder(process), KEY, demand(permits, capacity))
    }

    /// Releases permits, one after the other.
    fn release(&self, process: u64, permits: u64) {
        for _ in 0..permits {
            release(&self.table, holder(process), KEY).unwrap();
        }
    }

    fn wait(&self, process: u64, permits: u64, capacity: u64) -> Waited {
        let mailbox = &self.mail[process as usize];
        let ask = ask(mailbox, process, demand(permits, capacity));
        wait(&self.table, holder(process), KEY, ask)
    }

    fn cancel(&self, process: u64) -> bool {
        cancel(&self.table, holder(process), process)
    }

    fn die(&self, process: u64) -> u64 {
        die(&self.table, holder(process))
    }

    /// What a process was told since the last call.
    fn told(&self, process: u64) -> Vec<WaitEnd> {
        let mail = self.mail[process as usize].read();
        let ends = mail.into_iter().map(|(request, told)| {
            assert_eq!(request, process, "told to another process");
            told
        });
        ends.collect()
    }

    /// How a request ended for which the process got this answer: once (P13).
    #[track_caller]
    fn end_of(&self, process: u64, waited: Waited) -> WaitEnd {
        let mut ends = self.told(process);
        match waited {
            Waited::Permit(out) => ends.push(WaitEnd::Granted(out)),
            Waited::Closed => ends.push(WaitEnd::Closed),
            Waited::Waiting => {}
            Waited::Full | Waited::Declare => panic!("nothing limits the number of requests"),
        }
        assert_eq!(ends.len(), 1, "{ends:?}");
        ends[0]
    }

    /// Checks what each process has, in the order of the processes, and how many requests wait.
    #[track_caller]
    fn assert_held(&self, held: &[(u64, u64)], requests: usize) {
        let rows = held
            .iter()
            .map(|(process, permits)| ((*process, KEY), *permits));
        let rows: BTreeMap<_, _> = rows.collect();
        let out = rows.values().sum::<u64>();
        assert_eq!(all_permits(&self.table), rows);
        assert_eq!(holders_of(&self.table, KEY), rows);
        assert_eq!((count(&self.table, KEY), permits(&self.table)), (out, out));
        let waiting = self.table.waiting(&pin(), &NameQuery(KEY));
        let usage = self.table.usage();
        assert_eq!((waiting, usage.waiting), (requests, requests));
        assert_eq!(usage.holders, held.len());
    }

    /// Checks as [`Waiting::assert_held`] does, and then that nothing is left when all processes have died.
    #[track_caller]
    fn assert_end(&self, held: &[(u64, u64)], requests: usize) {
        self.assert_held(held, requests);
        for process in 0..4 {
            self.die(process);
        }
        self.assert_held(&[], 0);
        // No queue is left, so the key is idle.
        for _ in 0..3 {
            sweep(&self.table);
        }
        assert_eq!(self.table.usage().keys, 0);
    }
}

#[test]
fn p12_release_during_wait() {
    for permits in [1, 2] {
        model(2, 5, move |first| {
            let waiting = Waiting::full(permits);
            let ((), waited) = first.two(
                &waiting,
                move |w| w.release(0, permits),
                move |w| w.wait(1, permits, permits),
            );
            assert_eq!(waiting.end_of(1, waited), WaitEnd::Granted(permits));
            waiting.assert_end(&[(1, permits)], 0);
        });
    }
}

/// A request makes the key, and another caller acquires it at the same time.
#[test]
fn p12_wait_for_a_new_key_during_acquire_and_release() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        waiting.die(0);
        for _ in 0..3 {
            sweep(&waiting.table);
        }
        assert_eq!(waiting.table.usage().keys, 0);
        let ((), waited) = first.two(
            &waiting,
            |w| {
                if w.acquire(0, 1, 1).is_some() {
                    w.release(0, 1);
                }
            },
            |w| w.wait(1, 1, 1),
        );
        assert_eq!(waiting.end_of(1, waited), WaitEnd::Granted(1));
        waiting.assert_end(&[(1, 1)], 0);
    });
}

/// W2: the last request is cancelled, which ends the queue, and another one starts to wait.
#[test]
fn p12_last_waiter_leaves_during_wait() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let (cancelled, waited) = first.two(&waiting, |w| w.cancel(1), |w| w.wait(2, 1, 1));
        assert!(cancelled, "no permit was released");
        assert_eq!((waited, waiting.told(2)), (Waited::Waiting, vec![]));
        waiting.release(0, 1);
        assert_eq!(waiting.end_of(2, waited), WaitEnd::Granted(1));
        waiting.assert_end(&[(2, 1)], 0);
    });
}

/// W2: a hand-over ends the queue, and another request starts to wait.
#[test]
fn p12_hand_over_during_wait() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let ((), waited) = first.two(&waiting, |w| w.release(0, 1), |w| w.wait(2, 1, 1));
        assert_eq!(waiting.end_of(1, Waited::Waiting), WaitEnd::Granted(1));
        assert_eq!((waited, waiting.told(2)), (Waited::Waiting, vec![]));
        waiting.release(1, 1);
        assert_eq!(waiting.end_of(2, waited), WaitEnd::Granted(1));
        waiting.assert_end(&[(2, 1)], 0);
    });
}

#[test]
fn p11_caller_does_not_overtake_a_waiter() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let ((), granted) = first.two(&waiting, |w| w.release(0, 1), |w| w.acquire(2, 1, 1));
        assert_eq!(granted, None, "the permit is out the whole time");
        assert_eq!(waiting.end_of(1, Waited::Waiting), WaitEnd::Granted(1));
        waiting.assert_end(&[(1, 1)], 0);
    });
}

/// Two holders release at the same time. Both permits are handed over, to the two oldest requests.
#[test]
fn p11_two_releases_are_handed_over_to_the_oldest() {
    model(2, 5, |first| {
        let waiting = Waiting::full(2);
        waiting.release(0, 1);
        assert_eq!(waiting.acquire(3, 1, 2), Some(2));
        for process in [2, 1] {
            assert_eq!(waiting.wait(process, 1, 2), Waited::Waiting);
        }
        // Process 3 holds a permit, and waits for another one.
        assert_eq!(waiting.wait(3, 1, 2), Waited::Waiting);
        first.two(&waiting, |w| w.release(0, 1), |w| w.release(3, 1));
        for process in [1, 2] {
            assert_eq!(
                waiting.end_of(process, Waited::Waiting),
                WaitEnd::Granted(2)
            );
        }
        assert_eq!(waiting.told(3), []);
        waiting.assert_end(&[(1, 1), (2, 1)], 1);
    });
}

/// More permits are handed over than in one piece. Between two pieces the queue is not locked.
#[test]
fn p11_caller_does_not_overtake_between_two_pieces() {
    model(2, 5, |first| {
        let waiting = Waiting::full(3);
        for process in 1..4 {
            assert_eq!(waiting.wait(process, 1, 3), Waited::Waiting);
        }
        let ((), granted) = first.two(
            &waiting,
            |w| release_many(&w.table, holder(0), KEY, 3).unwrap(),
            |w| w.acquire(3, 1, 3),
        );
        assert_eq!(granted, None, "all permits are out the whole time");
        for process in 1..4 {
            // The number of permits in use without those in hand.
            assert_eq!(waiting.told(process), [WaitEnd::Granted(process)]);
        }
        waiting.assert_end(&[(1, 1), (2, 1), (3, 1)], 0);
    });
}

/// W1: a request collects the free permits, and another caller acquires some of them.
#[test]
fn w1_two_acquires_during_wait_for_several() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        let (granted, waited) = first.two(
            &waiting,
            |w| [w.acquire(3, 1, 4), w.acquire(3, 1, 4)],
            |w| w.wait(1, 4, 4),
        );
        assert_eq!((waited, waiting.told(1)), (Waited::Waiting, vec![]));
        match granted {
            [None, None] => waiting.assert_end(&[(0, 1), (1, 3)], 1),
            [Some(2), None] => waiting.assert_end(&[(0, 1), (1, 2), (3, 1)], 1),
            [Some(2), Some(3)] => waiting.assert_end(&[(0, 1), (1, 1), (3, 2)], 1),
            _ => panic!("{granted:?}"),
        }
    });
}

/// W3: a process whose cancel finds no request has the message of the grant.
#[test]
fn p13_cancel_during_a_grant() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let ((), cancelled) = first.two(
            &waiting,
            |w| w.release(0, 1),
            |w| {
                let cancelled = w.cancel(1);
                let told = if cancelled {
                    vec![]
                } else {
                    vec![WaitEnd::Granted(1)]
                };
                assert_eq!(w.told(1), told);
                assert!(!w.cancel(1), "it has ended");
                cancelled
            },
        );
        assert_eq!(waiting.told(1), [], "told twice");
        let held = if cancelled { &[][..] } else { &[(1, 1)] };
        waiting.assert_end(held, 0);
    });
}

/// W3, O1: a process that finds the message of its grant can release the permit.
#[test]
fn p13_waiter_releases_when_it_is_told() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let ((), told) = first.two(
            &waiting,
            |w| w.release(0, 1),
            |w| {
                let told = w.told(1);
                if !told.is_empty() {
                    let released = release(&w.table, holder(1), KEY);
                    assert_eq!(released, Ok(()));
                }
                told
            },
        );
        if told.is_empty() {
            assert_eq!(waiting.end_of(1, Waited::Waiting), WaitEnd::Granted(1));
            waiting.assert_end(&[(1, 1)], 0);
        } else {
            assert_eq!(
                (&told[..], waiting.told(1)),
                (&[WaitEnd::Granted(1)][..], vec![])
            );
            waiting.assert_end(&[], 0);
        }
    });
}

/// W3: the same as [`p13_cancel_during_a_grant`], if the table closes.
#[test]
fn p13_cancel_during_close() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let (closed, ()) = first.two(
            &waiting,
            |w| w.table.close(usize::MAX, ()),
            |w| {
                let told = if w.cancel(1) {
                    vec![]
                } else {
                    vec![WaitEnd::Closed]
                };
                assert_eq!(w.told(1), told);
            },
        );
        assert!(closed);
        assert_eq!(waiting.told(1), [], "told twice");
        waiting.assert_end(&[(0, 1)], 0);
    });
}

/// W1: the oldest waiter, which has collected a permit, cancels its request. The next one gets the permit in the same
/// call.
#[test]
fn p12_collector_cancels_during_release() {
    model(2, 5, |first| {
        let waiting = Waiting::collecting();
        let ((), cancelled) = first.two(
            &waiting,
            |w| w.release(0, 1),
            |w| {
                let cancelled = w.cancel(1);
                let (first, second) = if cancelled {
                    (vec![], vec![WaitEnd::Granted(2)])
                } else {
                    (vec![WaitEnd::Granted(2)], vec![])
                };
                assert_eq!((w.told(1), w.told(2)), (first, second));
                cancelled
            },
        );
        assert_eq!((waiting.told(1), waiting.told(2)), (vec![], vec![]));
        if cancelled {
            waiting.assert_end(&[(2, 1)], 0);
        } else {
            waiting.assert_end(&[(1, 2)], 1);
        }
    });
}

/// As [`p12_collector_cancels_during_release`], if it dies.
#[test]
fn p4_collector_dies_during_release() {
    model(2, 5, |first| {
        let waiting = Waiting::collecting();
        let ((), released) = first.two(&waiting, |w| w.release(0, 1), |w| w.die(1));
        // Either the second waiter gets the permit that was collected, or one of two that the dead process was granted.
        let (first, second) = match released {
            0 => (vec![], WaitEnd::Granted(2)),
            _ => (vec![WaitEnd::Granted(2)], WaitEnd::Granted(1)),
        };
        assert_eq!((waiting.told(1), waiting.told(2)), (first, vec![second]));
        waiting.assert_end(&[(2, 1)], 0);
    });
}

/// W5: a permit that a dead process was granted goes to the next waiter.
#[test]
fn p4_waiter_dies_during_its_grant() {
    model(2, 5, |first| {
        let waiting = Waiting::full(1);
        for process in [1, 2] {
            assert_eq!(waiting.wait(process, 1, 1), Waited::Waiting);
        }
        let ((), released) = first.two(&waiting, |w| w.release(0, 1), |w| w.die(1));
        assert_eq!(waiting.told(1).len() as u64, released);
        assert_eq!(waiting.end_of(2, Waited::Waiting), WaitEnd::Granted(1));
        waiting.assert_end(&[(2, 1)], 0);
    });
}

/// As [`p4_waiter_dies_during_its_grant`], if the second one starts to wait at the same time.
#[test]
fn p4_waiter_dies_during_its_grant_and_another_wait() {
    model(3, 2, |first| {
        let waiting = Waiting::full(1);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        let waited = first.three(
            &waiting,
            [
                side(|w: &Waiting| {
                    w.release(0, 1);
                    None
                }),
                side(|w: &Waiting| {
                    w.die(1);
                    None
                }),
                side(|w: &Waiting| Some(w.wait(2, 1, 1))),
            ],
        );
        assert_eq!(waiting.end_of(2, waited[2].unwrap()), WaitEnd::Granted(1));
        waiting.assert_end(&[(2, 1)], 0);
    });
}

/// The permit of the dead holder is in its slot, or it was handed over and is in its overflow.
#[test]
fn p4_holder_dies_during_wait() {
    for handed_over in [false, true] {
        model(2, 5, move |first| {
            let waiting = Waiting::full(1);
            let holder = if handed_over { 2 } else { 0 };
            if handed_over {
                assert_eq!(waiting.wait(2, 1, 1), Waited::Waiting);
                waiting.release(0, 1);
                assert_eq!(waiting.end_of(2, Waited::Waiting), WaitEnd::Granted(1));
            }
            let (released, waited) =
                first.two(&waiting, move |w| w.die(holder), |w| w.wait(1, 1, 1));
            assert_eq!(released, 1);
            assert_eq!(waiting.end_of(1, waited), WaitEnd::Granted(1));
            waiting.assert_end(&[(1, 1)], 0);
        });
    }
}

/// K6: a key with a queue is not idle.
#[test]
fn p8_key_is_reclaimed_during_wait() {
    model(2, 4, |first| {
        let waiting = Waiting::full(1);
        waiting.release(0, 1);
        sweep(&waiting.table);
        let sweep = |w: &Waiting| {
            for _ in 0..2 {
                step(&w.table, 8);
            }
        };
        let ((), waited) = first.two(&waiting, sweep, |w| w.wait(1, 1, 0));
        assert_eq!((waited, waiting.told(1)), (Waited::Waiting, vec![]));
        waiting.assert_held(&[], 1);
        resize(&waiting.table, KEY, 1);
        assert_eq!(waiting.end_of(1, waited), WaitEnd::Granted(1));
        waiting.assert_end(&[(1, 1)], 0);
    });
}

/// W3: while the table closes, one request waits and has collected a permit, and another one starts to wait.
#[test]
fn p13_wait_during_close() {
    model(2, 5, |first| {
        let waiting = Waiting::full(2);
        assert_eq!(waiting.wait(1, 2, 2), Waited::Waiting);
        waiting.release(0, 1);
        let (closed, waited) = first.two(
            &waiting,
            |w| w.table.close(usize::MAX, ()),
            |w| w.wait(2, 2, 2),
        );
        assert!(closed);
        for (process, waited) in [(1, Waited::Waiting), (2, waited)] {
            assert_eq!(waiting.end_of(process, waited), WaitEnd::Closed);
        }
        waiting.assert_held(&[(0, 1)], 0);
        assert_eq!(waiting.wait(2, 1, 2), Waited::Closed);
        waiting.table.reopen();
        assert_eq!(waiting.wait(2, 1, 2), Waited::Permit(2));
        waiting.assert_end(&[(0, 1), (2, 1)], 0);
    });
}

/// The new capacity is less than the number of permits that the oldest waiter waits for. What it has collected is
/// released.
#[test]
fn p6_resize_during_release() {
    model(2, 5, |first| {
        let waiting = Waiting::collecting();
        first.two(&waiting, |w| w.release(0, 1), |w| resize(&w.table, KEY, 1));
        let ends = (waiting.told(1), waiting.told(2));
        if ends.0.is_empty() {
            assert_eq!(ends.1, [WaitEnd::Granted(1)]);
            waiting.assert_end(&[(2, 1)], 1);
        } else {
            assert_eq!(ends, (vec![WaitEnd::Granted(2)], vec![]));
            waiting.assert_end(&[(1, 2)], 1);
        }
    });
}

/// The same, and the oldest waiter cancels its request.
#[test]
fn p6_resize_during_release_and_cancel() {
    model(3, 2, |first| {
        let waiting = Waiting::collecting();
        let [_, _, cancelled] = first.three(
            &waiting,
            [
                side(|w: &Waiting| {
                    w.release(0, 1);
                    false
                }),
                side(|w: &Waiting| {
                    resize(&w.table, KEY, 1);
                    false
                }),
                side(|w: &Waiting| w.cancel(1)),
            ],
        );
        let ends = (waiting.told(1), waiting.told(2));
        if cancelled {
            assert!(matches!(ends.1[..], [WaitEnd::Granted(1 | 2)]) && ends.0.is_empty());
            waiting.assert_end(&[(2, 1)], 0);
        } else {
            assert_eq!(ends, (vec![WaitEnd::Granted(2)], vec![]));
            waiting.assert_end(&[(1, 2)], 1);
        }
    });
}

/// A waiter with a larger capacity takes a released permit and a free one. A caller with a still larger capacity takes
/// the free one at the same time.
#[test]
fn p6_caller_takes_a_free_permit_during_a_hand_over_of_two() {
    model(2, 5, |first| {
        let waiting = Waiting::full(2);
        assert_eq!(waiting.wait(1, 1, 1), Waited::Waiting);
        assert_eq!(waiting.wait(2, 2, 3), Waited::Waiting);
        let ((), granted) = first.two(&waiting, |w| w.release(0, 1), |w| w.acquire(3, 1, 4));
        assert_eq!(waiting.told(1), []);
        match granted {
            Some(3) => {
                assert_eq!(waiting.told(2), []);
                waiting.assert_end(&[(0, 1), (3, 1)], 2);
            }
            Some(4) => {
                assert_eq!(waiting.told(2), [WaitEnd::Granted(3)]);
                waiting.assert_end(&[(0, 1), (2, 2), (3, 1)], 1);
            }
            _ => panic!("{granted:?}"),
        }
    });
}

/// W4: a waiter that is not the oldest gets all its permits or none. Other callers can have a single free one.
#[test]
fn w4_second_waiter_collects_nothing_during_acquire() {
    model(2, 5, |first| {
        let waiting = Waiting::full(3);
        assert_eq!(waiting.wait(1, 2, 2), Waited::Waiting);
        assert_eq!(waiting.wait(2, 2, 3), Waited::Waiting);
        let ((), granted) = first.two(&waiting, |w| w.release(0, 1), |w| w.acquire(3, 1, 3));
        assert!(matches!(granted, None | Some(3)));
        for process in [1, 2] {
            assert_eq!(waiting.told(process), []);
        }
        if granted.is_some() {
            waiting.assert_end(&[(0, 2), (3, 1)], 2);
        } else {
            waiting.assert_end(&[(0, 2)], 2);
        }
    });
}

/// A table, and data that only the holder of a permit may access.
struct Guarded {
    waiting: Arc<Waiting>,
    by_permit: UnsafeCell<u64>,
}

impl Guarded {
    /// As `Guarded` in `counting.rs`.
    fn touch(&self) {
        // SAFETY: the caller has the permit.
        self.by_permit.with_mut(|touched| unsafe { *touched += 1 });
    }
}

#[test]
fn p1_waiter_sees_writes_of_the_last_holder() {
    model(2, 5, |first| {
        let guarded = Arc::new(Guarded {
            waiting: Waiting::full(1),
            by_permit: UnsafeCell::new(0),
        });
        first.two(
            &guarded,
            |g| {
                let _pin = pin();
                g.touch();
                g.waiting.release(0, 1);
            },
            |g| {
                let _pin = pin();
                if matches!(g.waiting.wait(1, 1, 1), Waited::Permit(_))
                    || !g.waiting.told(1).is_empty()
                {
                    g.touch();
                }
            },
        );
        guarded.waiting.told(1);
        guarded.waiting.assert_end(&[(1, 1)], 0);
    });
}
