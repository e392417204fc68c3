//! Models of shared keys: changes of the share, and all other calls.

use super::*;
use common::*;
use permit_table::{Acquired, Given, WaitEnd, Waited};

/// The key of all calls, and its limit.
const KEY: u64 = 1;
const LIMIT: u64 = 2;

/// A table of three processes with a share of the key, and their mailboxes.
struct Sharing {
    table: Table,
    mail: [Mailbox; 3],
}

impl Sharing {
    fn with_share(share: u64) -> Arc<Self> {
        let table = Table::new(3).unwrap();
        assert_eq!(set_share(&table, KEY, share, LIMIT), 0);
        let mail = Default::default();
        Arc::new(Self { table, mail })
    }

    /// Two processes hold permits, and the share has ended.
    fn that_ends(first: u64, second: u64) -> Arc<Self> {
        let sharing = Self::with_share(first + second);
        (0..first).for_each(|_| assert!(sharing.acquire(0).is_some()));
        (0..second).for_each(|_| assert!(sharing.acquire(1).is_some()));
        assert_eq!(end_share(&sharing.table, KEY), first + second);
        sharing
    }

    /// Acquires a permit of the share.
    fn acquire(&self, process: u64) -> Option<Acquired> {
        acquire_shared(&self.table, holder(process), KEY, demand(1, LIMIT))
    }

    fn wait(&self, process: u64, permits: u64) -> Waited {
        let ask = ask(
            &self.mail[process as usize],
            process,
            demand(permits, LIMIT),
        );
        wait_shared(&self.table, holder(process), KEY, ask)
    }

    fn told(&self, process: u64) -> Vec<WaitEnd> {
        let mail = self.mail[process as usize].read();
        mail.into_iter().map(|(_, end)| end).collect()
    }

    /// Sets the share, and returns the number of permits in use.
    fn set(&self, share: u64) -> u64 {
        set_share(&self.table, KEY, share, LIMIT)
    }

    fn release(&self, process: u64) {
        assert_eq!(release(&self.table, holder(process), KEY), Ok(()));
    }

    fn lose(&self, process: u64) -> u64 {
        lose(&self.table, holder(process), KEY)
    }

    /// Checks how many permits each process has. The word and the records agree.
    #[track_caller]
    fn assert_held(&self, held: &[u64]) {
        self.assert_records(held);
        assert_eq!(count(&self.table, KEY), held.iter().sum::<u64>());
    }

    #[track_caller]
    fn assert_records(&self, held: &[u64]) {
        for (process, permits) in held.iter().enumerate() {
            let of = common::held(&self.table, holder(process as u64));
            assert_eq!(of.get(&KEY).copied().unwrap_or(0), *permits);
        }
    }

    /// All processes die, and the share is returned: nothing is left.
    #[track_caller]
    fn assert_end(&self) {
        for process in 0..3 {
            die(&self.table, holder(process));
        }
        assert_eq!(self.set(0), 0);
        for _ in 0..3 {
            sweep(&self.table);
        }
        assert_eq!(self.table.usage().keys, 0);
    }
}

#[test]
fn cp1_two_acquire_the_last_permit_of_a_share() {
    model(2, 5, |first| {
        let sharing = Sharing::with_share(1);
        let granted = first.two(&sharing, |s| s.acquire(0), |s| s.acquire(1));
        match granted {
            (Some(Acquired::Permit(1)), Some(Acquired::Full)) => sharing.assert_held(&[1, 0]),
            (Some(Acquired::Full), Some(Acquired::Permit(1))) => sharing.assert_held(&[0, 1]),
            _ => panic!("{granted:?}"),
        }
        assert!(share(&sharing.table, KEY).unwrap().was_refused);
        sharing.assert_end();
    });
}

/// What a change of the share reports bounds what is in use after it. A change of the passed capacity, too, is one step
/// with it: no call is granted by the old one.
#[test]
fn cp1_share_changes_during_acquire() {
    for limit in [LIMIT, LIMIT + 1] {
        model(2, 5, move |first| {
            let sharing = Sharing::with_share(1);
            let (granted, in_use) = first.two(
                &sharing,
                |s| s.acquire(0),
                move |s| set_share(&s.table, KEY, 0, limit),
            );
            match granted {
                Some(Acquired::Permit(1)) => {
                    sharing.assert_held(&[1]);
                    assert_eq!(in_use, 1);
                }
                Some(Acquired::Full) if limit == LIMIT => sharing.assert_held(&[0]),
                None if limit != LIMIT => sharing.assert_held(&[0]),
                _ => panic!("{granted:?}"),
            }
            assert!(sharing
                .acquire(1)
                .is_none_or(|granted| granted == Acquired::Full));
            sharing.assert_end();
        });
    }
}

/// A permit that is released goes to the waiter or back, and its message has the number of permits in use.
#[test]
fn cp1_share_is_lowered_during_a_hand_over() {
    model(2, 5, |first| {
        let sharing = Sharing::with_share(1);
        assert_eq!(sharing.acquire(0), Some(Acquired::Permit(1)));
        assert_eq!(sharing.wait(1, 1), Waited::Waiting);
        let (released, in_use) = first.two(
            &sharing,
            |s| release(&s.table, holder(0), KEY),
            |s| s.set(0),
        );
        assert_eq!((released, in_use), (Ok(()), 1));
        match sharing.told(1)[..] {
            [WaitEnd::Granted(1)] => sharing.assert_held(&[0, 1]),
            [] => {
                sharing.assert_held(&[0, 0]);
                assert_eq!(
                    (sharing.set(1), sharing.told(1)),
                    (1, vec![WaitEnd::Granted(1)])
                );
            }
            ref told => panic!("{told:?}"),
        }
        sharing.assert_end();
    });
}

#[test]
fn cp4_share_is_raised_during_wait() {
    model(2, 5, |first| {
        let sharing = Sharing::with_share(0);
        let (waited, in_use) = first.two(&sharing, |s| s.wait(1, 1), |s| s.set(1));
        match waited {
            Waited::Permit(1) => assert_eq!(in_use, 0),
            Waited::Waiting => assert_eq!(sharing.told(1), [WaitEnd::Granted(1)]),
            _ => panic!("{waited:?}"),
        }
        sharing.assert_held(&[0, 1]);
        sharing.assert_end();
    });
}

/// What a waiter has collected goes back at once.
#[test]
fn cp4_share_is_lowered_while_a_collector_leaves() {
    model(2, 5, |first| {
        let sharing = Sharing::with_share(1);
        assert_eq!(sharing.wait(1, 2), Waited::Waiting);
        sharing.assert_held(&[0, 1]);
        let (cancelled, in_use) =
            first.two(&sharing, |s| cancel(&s.table, holder(1), 1), |s| s.set(0));
        assert_eq!((cancelled, in_use), (true, 0));
        sharing.assert_held(&[0, 0]);
        sharing.assert_end();
    });
}

/// The sweep reclaims a key without a share, and its node is freed.
#[test]
fn p8_share_is_set_during_the_sweep() {
    model(2, 4, |first| {
        let sharing = Sharing::with_share(0);
        sweep(&sharing.table);
        let ((), in_use) = first.two(&sharing, |s| sweep(&s.table), |s| s.set(1));
        assert_eq!(
            (in_use, share(&sharing.table, KEY).map(|of| of.share)),
            (0, Some(1))
        );
        assert_eq!(sharing.acquire(0), Some(Acquired::Permit(1)));
        sharing.assert_end();
    });
}

/// A caller that was refused so far gets no permit while a request waits for it.
#[test]
fn cp4_caller_does_not_overtake_a_waiter() {
    model(2, 5, |first| {
        let sharing = Sharing::with_share(0);
        assert_eq!(sharing.wait(1, 1), Waited::Waiting);
        let (granted, in_use) = first.two(&sharing, |s| s.acquire(0), |s| s.set(1));
        assert_eq!((granted, in_use), (Some(Acquired::Full), 1));
        assert_eq!(sharing.told(1), [WaitEnd::Granted(1)]);
        sharing.assert_end();
    });
}

/// A new key without a share can be reclaimed before the call that inserts it returns.
#[test]
fn p8_key_without_a_share_is_inserted_during_the_sweep() {
    model(2, 3, |first| {
        let table = Arc::new(Table::new(3).unwrap());
        let ((), keys) = first.two(
            &table,
            |table| {
                set_share(table, KEY, 0, LIMIT);
            },
            |table| {
                steps(4)(table);
                table.usage().keys
            },
        );
        assert!(keys <= 1, "{keys}");
    });
}

/// Permits are lost while their process releases one of them. The other one is lost, or counted until it is released.
#[test]
fn cp1_permits_are_lost_during_a_release() {
    for held in [1, 2] {
        model(2, 5, move |first| {
            let sharing = Sharing::that_ends(held, 0);
            let ((), lost) = first.two(&sharing, |s| s.release(0), |s| s.lose(0));
            let (left, counted) = (held - 1, count(&sharing.table, KEY));
            sharing.assert_records(&[left]);
            assert!(lost <= held && counted <= left && (counted == 0 || lost < held));
            assert_eq!(sharing.lose(0), counted);
            assert_eq!(count(&sharing.table, KEY), 0);
            (0..left).for_each(|_| sharing.release(0));
            sharing.assert_held(&[0]);
            sharing.assert_end();
        });
    }
}

/// What another process holds is counted.
#[test]
fn cp1_permit_is_lost_during_the_release_of_another_process() {
    model(2, 5, |first| {
        let sharing = Sharing::that_ends(1, 1);
        let ((), lost) = first.two(&sharing, |s| s.release(1), |s| s.lose(0));
        sharing.assert_records(&[1, 0]);
        assert_eq!((lost, sharing.set(1)), (1, 0));
        assert_eq!(sharing.acquire(1), Some(Acquired::Permit(1)));
        sharing.release(0);
        sharing.assert_held(&[0, 1]);
        sharing.assert_end();
    });
}

#[test]
fn cp3_permit_is_lost_during_the_death_of_its_process() {
    model(2, 5, |first| {
        let sharing = Sharing::that_ends(1, 0);
        let (_, lost) = first.two(&sharing, |s| die(&s.table, holder(0)), |s| s.lose(0));
        sharing.assert_held(&[0]);
        assert!(lost <= 1);
        sharing.assert_end();
    });
}

/// It is lost before it is given, or because of that.
#[test]
fn cp3_permit_is_lost_while_it_is_given() {
    model(2, 5, |first| {
        let sharing = Sharing::that_ends(1, 0);
        let give = |s: &Sharing| give(&s.table, holder(0), holder(1), KEY, 1);
        let (given, _) = first.two(&sharing, give, |s| s.lose(0));
        assert_eq!(given, Given::Given);
        sharing.assert_records(&[0, 1]);
        assert_eq!((count(&sharing.table, KEY), sharing.lose(1)), (0, 0));
        sharing.set(1);
        assert_eq!(sharing.acquire(0), Some(Acquired::Permit(1)));
        sharing.release(1);
        sharing.assert_held(&[1, 0]);
        sharing.assert_end();
    });
}

/// A free permit is granted while the share changes, also while releases need the lock because of a lost one.
#[test]
fn cp2_share_changes_while_a_permit_is_lost() {
    model(2, 4, |first| {
        let sharing = Sharing::that_ends(1, 0);
        assert_eq!((sharing.lose(0), sharing.set(1)), (1, 0));
        let (granted, _) = first.two(&sharing, |s| s.acquire(1), |s| s.set(2));
        assert_eq!(granted, Some(Acquired::Permit(1)));
        sharing.release(0);
        sharing.assert_held(&[0, 1]);
        sharing.assert_end();
    });
}

/// The key is not reclaimed while a lost permit leads to it.
#[test]
fn p8_lost_permit_is_released_during_the_sweep() {
    model(2, 4, |first| {
        let sharing = Sharing::that_ends(1, 0);
        assert_eq!(sharing.lose(0), 1);
        sweep(&sharing.table);
        let ((), ()) = first.two(&sharing, |s| s.release(0), |s| sweep(&s.table));
        sharing.assert_held(&[0]);
        sharing.assert_end();
    });
}
