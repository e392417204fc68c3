//! Waiting, transfers and several permits at once: the bugs of other projects, and the limits. (`histories.rs` has any
//! history.)

use crate::common::*;
use equivalent::Equivalent;
use permit_table::{
    pin, Acquired, Capacity, Cursor, Demand, Given, NotHeld, OutOfMemory, Query, WaitEnd, Waited,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::mem;
use std::num::NonZeroU64;

/// A request that must wait.
#[track_caller]
fn must_wait(table: &Table, mailbox: &Mailbox, number: u64, request: u64, key: u64, of: Demand) {
    let waited = wait(table, holder(number), key, ask(mailbox, request, of));
    assert_eq!(waited, Waited::Waiting);
}

// --------------------------------------------------------------------------------------------- bugs of other projects

/// golang/go#37852, awslabs/shuttle#167, embassy#6964: the first request ends, and nothing looks at the next one.
#[test]
fn golang_37852_end_of_the_first_request_grants_the_next() {
    let ends: [fn(&Table); 3] = [
        |table| assert!(cancel(table, holder(2), 0)),
        |table| assert_eq!(die(table, holder(2)), 0),
        // Now only the first one is not satisfiable.
        |table| resize(table, 7, 2),
    ];
    for end in ends {
        let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
        acquire(&table, holder(1), 7, 3).unwrap();
        acquire(&table, holder(1), 7, 3).unwrap();
        // It collects the permit that is free.
        must_wait(&table, &mailbox, 2, 0, 7, demand(3, 3));
        must_wait(&table, &mailbox, 3, 1, 7, demand(1, 3));
        assert_eq!((count(&table, 7), mailbox.read()), (3, vec![]));
        release(&table, holder(1), 7).unwrap();
        assert_eq!(held(&table, holder(2)), [(7, 2)].into());
        end(&table);
        assert_eq!(mailbox.read(), [(1, WaitEnd::Granted(2))]);
        assert_eq!(held(&table, holder(3)), [(7, 1)].into());
    }
}

/// python/asyncio#270: a request is granted and then cancelled, or its process dies, and the next one never runs.
#[test]
fn asyncio_270_cancel_or_death_after_a_grant_passes_it_on() {
    for is_cancelled in [false, true] {
        let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
        acquire(&table, holder(1), 7, 1).unwrap();
        must_wait(&table, &mailbox, 2, 0, 7, demand(1, 1));
        must_wait(&table, &mailbox, 3, 1, 7, demand(1, 1));
        release(&table, holder(1), 7).unwrap();
        assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(1))]);
        if is_cancelled {
            assert!(!cancel(&table, holder(2), 0), "it has the permit");
            release(&table, holder(2), 7).unwrap();
        } else {
            assert_eq!(die(&table, holder(2)), 1);
        }
        assert_eq!(mailbox.read(), [(1, WaitEnd::Granted(1))]);
    }
}

/// Emysql#93: a process that waits dies, and gets the next permit.
#[test]
fn emysql_93_dead_process_is_not_granted() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    for number in 2..5 {
        must_wait(&table, &mailbox, number, number, 7, demand(1, 1));
    }
    assert_eq!((die(&table, holder(2)), waiting(&table, 7)), (0, 2));
    release(&table, holder(1), 7).unwrap();
    assert_eq!(mailbox.read(), [(3, WaitEnd::Granted(1))]);
    // The other ones in the queue are not affected by the death of one in the middle.
    must_wait(&table, &mailbox, 5, 5, 7, demand(1, 1));
    must_wait(&table, &mailbox, 6, 6, 7, demand(1, 1));
    die(&table, holder(5));
    release(&table, holder(3), 7).unwrap();
    release(&table, holder(4), 7).unwrap();
    let granted = [4, 6].map(|request| (request, WaitEnd::Granted(1)));
    assert_eq!(mailbox.read(), granted);
}

/// tokio#6450: a permit is granted to a waiter that never runs. It holds it like any other holder, and its death passes
/// it on.
#[test]
fn tokio_6450_unread_grant_is_held_and_passed_on() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    must_wait(&table, &mailbox, 2, 0, 7, demand(1, 1));
    must_wait(&table, &mailbox, 2, 1, 7, demand(1, 1));
    must_wait(&table, &mailbox, 3, 2, 7, demand(1, 1));
    release(&table, holder(1), 7).unwrap();
    assert_eq!(held(&table, holder(2)), [(7, 1)].into());
    assert_eq!(holders_of(&table, 7), [((2, 7), 1)].into());
    assert_eq!(die(&table, holder(2)), 1);
    let granted = mailbox.read();
    assert_eq!(
        granted,
        [0, 2].map(|request| (request, WaitEnd::Granted(1)))
    );
    assert_eq!(held(&table, holder(3)), [(7, 1)].into());
}

/// nimble_pool#27: requests that have timed out stay in the queue.
#[test]
fn nimble_pool_27_timeouts_leave_nothing() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    let time_out = |requests: u64| {
        for request in 0..requests {
            // Some time out before the next one waits, others later, and not in their order.
            let number = 2 + request % 3;
            must_wait(
                &table,
                &mailbox,
                number,
                request,
                7,
                demand(1 + request % 2, 1),
            );
        }
        for request in (0..requests).step_by(2).chain((1..requests).step_by(2)) {
            assert!(time_out(&table, holder(2 + request % 3), request));
        }
    };
    // A list that becomes empty keeps the memory of some entries, so in an interpreter there are no more later.
    let at_first = if cfg!(miri) { many(5_000) } else { 6 };
    time_out(at_first);
    let before = allocated();
    (0..many(5_000)).for_each(|_| time_out(1));
    time_out(many(5_000));
    assert!(allocated() <= before);
    let after = table.usage();
    assert_eq!((after.waiting, waiting(&table, 7)), (0, 0));
    let timed_out = at_first + 2 * many(5_000);
    let counted = (after.totals.timed_out, after.totals.refused);
    assert_eq!(counted, (timed_out, timed_out));
    assert_eq!((mailbox.read(), count(&table, 7)), (vec![], 1));
}

/// A process waits for many keys and gets permits of them, one key after the other.
#[test]
fn p8_keys_waited_for_and_given_leave_nothing() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    let once = |key| {
        acquire(&table, holder(1), key, 1).unwrap();
        must_wait(&table, &mailbox, 2, 0, key, demand(1, 1));
        assert!(cancel(&table, holder(2), 0));
        must_wait(&table, &mailbox, 2, 1, key, demand(1, 1));
        release(&table, holder(1), key).unwrap();
        assert_eq!(give(&table, holder(2), holder(3), key, 1), Given::Given);
        release(&table, holder(3), key).unwrap();
        drop(mailbox.read());
        sweep(&table);
        sweep(&table);
    };
    (0..many(1_000)).for_each(once);
    let before = allocated();
    (many(1_000)..2 * many(1_000)).for_each(once);
    // Lists keep the memory of one entry. A row of each key would take 40 bytes in both processes.
    assert!(allocated() <= before + 10 * many(1_000) as isize);
    // The entries name no key that has been reclaimed.
    assert!(held(&table, holder(2)).is_empty() && held(&table, holder(3)).is_empty());
}

/// marusama/semaphore#3: if every request could collect, each would have permits that the other one needs.
#[test]
fn semaphore_3_only_the_oldest_collects() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 9).unwrap();
    must_wait(&table, &mailbox, 2, 0, 7, demand(2, 2));
    // The first one has collected a permit. Now its capacity is exceeded.
    acquire_many(&table, holder(1), 7, demand(2, 4)).unwrap();
    must_wait(&table, &mailbox, 3, 1, 7, demand(3, 3));
    for out in [3, 2] {
        release(&table, holder(1), 7).unwrap();
        assert_eq!(count(&table, 7), out, "the second one collects nothing");
        assert_eq!(held(&table, holder(3)), [].into());
    }
    release(&table, holder(1), 7).unwrap();
    assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(2))]);
    release_many(&table, holder(2), 7, 2).unwrap();
    assert_eq!(mailbox.read(), [(1, WaitEnd::Granted(3))]);
}

/// poolboy#70, hackney#420, poolex#210: a timeout at the same time as a grant loses the permit.
#[test]
fn poolboy_70_cancel_after_the_grant_says_so() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    must_wait(&table, &mailbox, 2, 0, 7, demand(1, 1));
    release(&table, holder(1), 7).unwrap();
    assert!(!cancel(&table, holder(2), 0));
    assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(1))]);
    release(&table, holder(2), 7).unwrap();
    assert_eq!((count(&table, 7), table.usage().totals.handed_over), (0, 1));
}

/// sleeplocks 1.1.2: the death of a holder grants nothing.
#[test]
fn sleeplocks_death_of_a_holder_grants() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    // In the slot, and in its overflow.
    acquire_all(&table, holder(1), 0..4);
    acquire(&table, holder(9), 4, 1).unwrap();
    assert_eq!(give(&table, holder(9), holder(1), 4, 1), Given::Given);
    for key in 0..5 {
        must_wait(&table, &mailbox, 2, key, key, demand(1, 1));
    }
    assert_eq!(die(&table, holder(1)), 5);
    let granted: BTreeSet<u64> = mailbox
        .read()
        .into_iter()
        .map(|(request, _)| request)
        .collect();
    assert_eq!(granted, (0..5).collect());
}

/// golang/go#63615: a call whose deadline has expired waits. Here it can be told not to.
#[test]
fn golang_63615_call_that_must_not_wait_does_not() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    for key in [7, 8] {
        let mut ask = ask(&mailbox, 0, demand(2, 1));
        ask.max_waiting = 0;
        assert_eq!(wait(&table, holder(2), key, ask), Waited::Full);
        assert_eq!(
            (waiting(&table, key), cancel(&table, holder(2), 0)),
            (0, false)
        );
    }
    assert_eq!((table.usage().keys, table.usage().waiting), (1, 0));
}

// -------------------------------------------------------------------------------------------------------------- limits

#[test]
fn p6_max_waiting_of_the_call_decides() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    let wait = |request, max_waiting| {
        let mut ask = ask(&mailbox, request, demand(1, 1));
        ask.max_waiting = max_waiting;
        wait(&table, holder(2), 7, ask)
    };
    assert_eq!(
        (wait(0, 1), wait(1, 1), wait(2, 0)),
        (Waited::Waiting, Waited::Full, Waited::Full)
    );
    assert_eq!(
        (wait(3, 2), wait(4, 2), wait(5, usize::MAX)),
        (Waited::Waiting, Waited::Full, Waited::Waiting)
    );
    assert!(cancel(&table, holder(2), 3) && !cancel(&table, holder(2), 4));
    assert_eq!((wait(6, 2), wait(7, 3)), (Waited::Full, Waited::Waiting));
    assert_eq!(waiting(&table, 7), 3);
}

/// The limit of the table is for all keys together, also for keys that are not in the table yet.
#[test]
fn p2_max_waiting_of_the_table_is_for_all_keys() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire_all(&table, holder(1), 0..3);
    table.set_max_waiting(2);
    let wait = |request, key, of| wait(&table, holder(2), key, ask(&mailbox, request, of));
    assert_eq!(wait(0, 0, demand(1, 1)), Waited::Waiting);
    assert_eq!(wait(1, 1, demand(1, 1)), Waited::Waiting);
    let keys = table.usage().keys;
    // A key without a queue, one with a queue, one that is not in the table. The last request cannot be satisfied.
    for (key, of) in [(2, demand(1, 1)), (0, demand(1, 1)), (9, demand(2, 1))] {
        assert_eq!(wait(2, key, of), Waited::Full, "key {key}");
    }
    assert_eq!((table.usage().waiting, table.usage().keys), (2, keys));
    assert!(cancel(&table, holder(2), 0));
    assert_eq!(wait(3, 9, demand(2, 1)), Waited::Waiting);
    table.set_max_waiting(3);
    assert_eq!(wait(4, 2, demand(1, 1)), Waited::Waiting);
    assert_eq!(wait(5, 2, demand(1, 1)), Waited::Full);
}

/// P13: a table closes in pieces. Each request is told once, and none starts to wait until the table is reopened.
#[test]
fn p13_closing_ends_all_requests_in_pieces() {
    const REQUESTS: u64 = 100;
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    (0..2).for_each(|_| acquire_all(&table, holder(1), 0..10));
    for request in 0..REQUESTS {
        let (number, key) = (2 + request % 7, request % 10);
        // The first of each key collects.
        must_wait(
            &table,
            &mailbox,
            number,
            request,
            key,
            demand(2 + request % 3 / 2, 3),
        );
    }
    assert_eq!(permits(&table), 30);
    let mut closed = BTreeSet::new();
    loop {
        let is_done = table.close(7, ());
        let told = mailbox.read();
        assert!(
            told.len() == 7 || is_done && told.len() < 7,
            "{} requests",
            told.len()
        );
        for (request, told) in told {
            assert_eq!(told, WaitEnd::Closed);
            assert!(closed.insert(request), "told twice");
            assert!(!cancel(&table, holder(2 + request % 7), request));
        }
        let waiting = REQUESTS - closed.len() as u64;
        assert_eq!(
            (table.usage().waiting as u64, is_done),
            (waiting, waiting == 0)
        );
        // Whichever queues have ended so far.
        for key in 0..50 {
            let waited = wait(&table, holder(9), key, ask(&mailbox, key, demand(9, 1)));
            assert_eq!(waited, Waited::Closed, "key {key}");
        }
        permits(&table);
        if is_done {
            break;
        }
    }
    // What was collected is released. The holders keep their permits.
    assert_eq!((permits(&table), lines(&table, &pin()).len()), (20, 0));
    assert!((0..10).all(|key| acquire(&table, holder(2), key, 3) == Some(3)));
    table.reopen();
    must_wait(&table, &mailbox, 2, 0, 0, demand(2, 3));
    release_many(&table, holder(1), 0, 2).unwrap();
    assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(3))]);
    for number in 1..3 {
        die(&table, holder(number));
    }
    assert_empty(&table);
}

/// P12: a request that ends has collected more permits than one step hands over. All that fit are granted by that call.
#[test]
fn p12_many_collected_permits_are_handed_over_by_one_call() {
    type End = fn(&Table);
    let ends: [(End, usize); 3] = [
        (|table| assert!(cancel(table, holder(1), 0)), 250),
        (|table| assert_eq!(die(table, holder(1)), 0), 250),
        // With this capacity the request cannot be satisfied.
        (|table| resize(table, 7, 200), 199),
    ];
    for (end, expected) in ends {
        let (table, mailbox) = (Table::new(512).unwrap(), Mailbox::default());
        acquire(&table, holder(0), 7, 300).unwrap();
        must_wait(&table, &mailbox, 1, 0, 7, demand(300, 300));
        for request in 1..=250 {
            must_wait(&table, &mailbox, 1 + request, request, 7, demand(1, 300));
        }
        assert_eq!(count(&table, 7), 300);
        end(&table);
        let granted = mailbox.read().into_iter();
        let granted = granted.filter(|(_, told)| matches!(told, WaitEnd::Granted(_)));
        assert_eq!(granted.count(), expected);
        assert_eq!(count(&table, 7), 1 + expected as u64);
    }
}

/// P6: all requests that wait get the capacity in one step. Those with several permits are not overtaken.
#[test]
fn p6_resize_changes_all_requests_in_one_step() {
    let requests = if cfg!(miri) { 200 } else { 1000 };
    let (table, mailbox) = (Table::new(2048).unwrap(), Mailbox::default());
    acquire_all(&table, holder(0), (0..7).map(|_| 7));
    for request in 0..requests {
        // Some have the new capacity, some cannot be satisfied. The first one collects.
        let (weight, capacity) = (1 + (request + 1) % 3, [8, 3, 2, 0][request as usize % 4]);
        must_wait(
            &table,
            &mailbox,
            1 + request,
            request,
            7,
            demand(weight, capacity),
        );
    }
    assert_eq!((count(&table, 7), mailbox.read()), (8, vec![]));
    let is_settled = table
        .resize(&pin(), &NameQuery(7), Capacity::of(8, 1), usize::MAX, ())
        .unwrap();
    assert!(
        is_settled,
        "the first one still collects, and no other fits"
    );
    // A request that begins to wait now keeps its capacity of 9. A capacity of 8 would never grant it.
    must_wait(&table, &mailbox, 2001, 2000, 7, demand(9, 9));
    let total = 1 + requests as usize;
    assert_eq!(waiting(&table, 7), total);
    // The oldest of each capacity that waited are granted in the order in which they began to wait.
    let mut told = Vec::new();
    let mut granted = vec![0];
    while let Some(number) = granted.pop() {
        die(&table, holder(number));
        for (request, end) in mailbox.read() {
            assert!(matches!(end, WaitEnd::Granted(1..=9)));
            granted.insert(0, 1 + request);
            told.push(request);
        }
    }
    assert!(told.into_iter().eq((0..requests).chain([2000])), "P11");
    assert_eq!((waiting(&table, 7), permits(&table)), (0, 0));
}

/// P6: a call that finds more requests than it may change changes nothing.
#[test]
fn p6_resize_of_too_many_requests_changes_nothing() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    // The first one collects.
    must_wait(&table, &mailbox, 2, 0, 7, demand(2, 2));
    must_wait(&table, &mailbox, 2, 1, 7, demand(1, 1));
    let resize = |most| table.resize(&pin(), &NameQuery(7), Capacity::of(9, 1), most, ());
    assert_eq!([resize(0), resize(1)], [None, None]);
    assert_eq!(
        (mailbox.read(), held(&table, holder(2))),
        (vec![], [(7, 1)].into())
    );
    assert_eq!(resize(2), Some(true));
    let granted = [(0, WaitEnd::Granted(3)), (1, WaitEnd::Granted(4))];
    assert_eq!(mailbox.read(), granted);
    assert_eq!(resize(0), Some(true), "none waits");
}

/// P6: a smaller capacity grants nothing above it, also not what a request has collected that cannot be satisfied now.
#[test]
fn p6_resize_to_less_grants_nothing_above_it() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    assert_eq!(
        acquire_many(&table, holder(1), 7, demand(50, 100)),
        Some(50)
    );
    must_wait(&table, &mailbox, 2, 0, 7, demand(60, 100));
    (1..=100).for_each(|request| must_wait(&table, &mailbox, 2, request, 7, demand(1, 100)));
    assert_eq!(count(&table, 7), 100, "the first one has collected 50");
    resize(&table, 7, 5);
    assert_eq!((mailbox.read(), count(&table, 7)), (vec![], 50));
    assert!(held(&table, holder(2)).is_empty());
    // The first one cannot be satisfied, and blocks no other.
    release_many(&table, holder(1), 7, 50).unwrap();
    let granted = (1..=5).map(|request| (request, WaitEnd::Granted(request)));
    assert!(mailbox.read().into_iter().eq(granted));
    resize(&table, 7, 100);
    // Now the first one, and all that fit behind it.
    let told = mailbox.read();
    assert_eq!((told[0], told.len()), ((0, WaitEnd::Granted(65)), 36));
    assert_eq!(count(&table, 7), 100);
}

/// P12: requests that cannot be satisfied, more than are passed while the lock is held.
#[test]
fn p12_requests_that_cannot_be_satisfied_are_passed() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 9).unwrap();
    (0..200).for_each(|request| must_wait(&table, &mailbox, 2, request, 7, demand(9, 8)));
    must_wait(&table, &mailbox, 2, 200, 7, demand(1, 1));
    resize(&table, 7, 1);
    must_wait(&table, &mailbox, 2, 201, 7, demand(1, 1));
    release(&table, holder(1), 7).unwrap();
    assert_eq!(mailbox.read(), [(200, WaitEnd::Granted(1))]);
    resize(&table, 7, 2);
    assert_eq!(mailbox.read(), [(201, WaitEnd::Granted(2))]);
    resize(&table, 7, 0);
    resize(&table, 7, 9);
    assert_eq!(
        (held(&table, holder(2))[&7], count(&table, 7)),
        (9, 9),
        "the first one collects"
    );
    release_many(&table, holder(2), 7, 2).unwrap();
    assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(9))]);
}

/// The lock of a queue is held for a bounded time at once, also to pass requests that cannot be satisfied.
#[test]
fn p12_requests_that_cannot_be_satisfied_are_passed_in_pieces() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    (0..200).for_each(|request| must_wait(&table, &mailbox, 2, request, 7, demand(9, 1)));
    must_wait(&table, &mailbox, 2, 200, 7, demand(1, 0));
    let capacity = Capacity::of(8, 1);
    let mut is_settled = table
        .resize(&pin(), &NameQuery(7), capacity, usize::MAX, ())
        .unwrap();
    let mut pieces = 1;
    while !is_settled {
        assert_eq!(mailbox.read(), []);
        is_settled = table.settle(&pin(), &NameQuery(7), ());
        pieces += 1;
    }
    assert_eq!(
        (mailbox.read(), pieces),
        (vec![(200, WaitEnd::Granted(1))], 4)
    );
}

/// P11: after a change, requests that came from different capacities and newer ones are granted in their order.
#[test]
fn p11_newer_requests_do_not_overtake_after_a_resize() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire_all(&table, holder(1), [7, 7, 7]);
    for (request, capacity) in (0..).zip([1, 2, 3, 2, 1, 3]) {
        must_wait(&table, &mailbox, 2, request, 7, demand(1, capacity));
    }
    resize(&table, 7, 3);
    for request in 6..9 {
        must_wait(&table, &mailbox, 2, request, 7, demand(1 + request % 2, 3));
    }
    let mut order = Vec::new();
    release_many(&table, holder(1), 7, 3).unwrap();
    while waiting(&table, 7) > 0 {
        order.extend(mailbox.read().into_iter().map(|(request, _)| request));
        release(&table, holder(2), 7).unwrap();
    }
    order.extend(mailbox.read().into_iter().map(|(request, _)| request));
    assert!(order.into_iter().eq(0..9));
}

/// P11: lanes that have ended do not change which lane newer requests join.
#[test]
fn p11_newer_requests_join_one_lane() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire_many(&table, holder(1), 7, demand(4, 4)).unwrap();
    for request in 0..4 {
        must_wait(&table, &mailbox, 2, request, 7, demand(1, 1 + request));
    }
    resize(&table, 7, 4);
    // The oldest candidate has a capacity that is reached, so no request collects.
    must_wait(&table, &mailbox, 2, 4, 7, demand(1, 1));
    must_wait(&table, &mailbox, 2, 5, 7, demand(1, 2));
    let cancel = |requests: &[u64]| {
        for request in requests {
            assert!(cancel(&table, holder(2), *request));
        }
    };
    cancel(&[0]);
    must_wait(&table, &mailbox, 2, 6, 7, demand(2, 4));
    cancel(&[2, 5]);
    must_wait(&table, &mailbox, 2, 7, 7, demand(1, 4));
    cancel(&[1, 3]);
    release(&table, holder(1), 7).unwrap();
    assert_eq!(
        mailbox.read(),
        [],
        "an older request with the capacity needs two"
    );
    release(&table, holder(1), 7).unwrap();
    assert_eq!(mailbox.read(), [(6, WaitEnd::Granted(4))]);
}

/// The requests of a key have at most 256 different capacities, so a hand-over compares at most that many.
#[test]
fn p3_number_of_capacities_is_limited() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    let request = |request, capacity| {
        // It cannot be satisfied, or is refused now.
        let of = demand(1 + 2 * capacity, 1 + capacity);
        wait(&table, holder(2), 7, ask(&mailbox, request, of))
    };
    for capacity in 0..256 {
        assert_eq!(request(capacity, capacity), Waited::Waiting);
    }
    assert_eq!(request(256, 256), Waited::Full);
    assert_eq!(request(256, 255), Waited::Waiting);
    resize(&table, 7, 1);
    assert_eq!(request(257, 0), Waited::Waiting);
    assert_eq!(
        request(258, 300),
        Waited::Full,
        "all lanes still have waiters"
    );
    assert!(cancel(&table, holder(2), 100));
    assert_eq!(request(258, 300), Waited::Waiting);
}

/// P2: a process that waits in vain for many keys, one after the other, keeps no record of any.
#[test]
fn p2_waits_in_vain_for_many_keys_leave_nothing() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    let once = |key| {
        must_wait(&table, &mailbox, 2, 0, key, demand(1, 0));
        assert!(cancel(&table, holder(2), 0));
        (0..3).for_each(|_| sweep(&table));
    };
    (0..many(1_000)).for_each(once);
    let before = allocated();
    (many(1_000)..3 * many(1_000)).for_each(once);
    // A row of each key would take 32 bytes.
    assert!(allocated() <= before + 10_000);
}

/// P10: from the first step of closing on, permits that are released go to no request.
#[test]
fn p10_table_that_closes_grants_nothing() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    (0..3).for_each(|request| must_wait(&table, &mailbox, 2, request, 7, demand(1, 1)));
    assert!(!table.close(1, ()));
    release(&table, holder(1), 7).unwrap();
    assert_eq!((mailbox.read().len(), count(&table, 7)), (1, 0));
    assert_eq!(acquire(&table, holder(3), 7, 1), Some(1), "calls go on");
    assert!(table.close(9, ()));
    let ends = mailbox.read().into_iter().map(|(_, end)| end);
    assert!(ends.eq([WaitEnd::Closed; 2]));
}

/// P10: requests for all keys can wait after a table is reopened.
#[test]
fn p10_reopened_table_accepts_requests_for_all_keys() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    assert!(!table.is_closing());
    assert!(table.close(1, ()) && table.is_closing());
    table.reopen();
    assert!(!table.is_closing());
    (0..many(3_000)).for_each(|key| must_wait(&table, &mailbox, 2, key, key, demand(1, 0)));
}

/// As above, but in the order of the grants: with one weight the oldest is always first.
#[test]
fn p11_resize_keeps_the_order() {
    let requests = many(1000);
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire_all(&table, holder(1), [7, 7]);
    for request in 0..requests {
        let capacity = [2, 1, 0][request as usize % 3];
        must_wait(&table, &mailbox, 2, request, 7, demand(1, capacity));
    }
    resize(&table, 7, 2);
    let mut order = Vec::new();
    release_many(&table, holder(1), 7, 2).unwrap();
    for _ in 0..requests {
        order.extend(mailbox.read().into_iter().map(|(request, _)| request));
        release(&table, holder(2), 7).unwrap();
    }
    assert!(order.into_iter().eq(0..requests));
    // Nobody waits, and a key that is not in the table.
    resize(&table, 7, 3);
    resize(&table, 8, 3);
    assert_eq!((mailbox.read(), permits(&table)), (vec![], 0));
}

/// P6: a larger capacity grants what it allows, in one call. The lock is free from time to time, and meanwhile no
/// caller takes the permits.
#[test]
fn p6_resize_grants_all_that_fit() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    let requests = 300;
    for request in 0..requests {
        must_wait(&table, &mailbox, 2 + request % 3, request, 7, demand(1, 0));
    }
    assert_eq!(table.usage().keys, 1, "nobody holds it");
    assert_empty_but_waiting(&table);
    let is_settled = table
        .resize(&pin(), &NameQuery(7), Capacity::of(200, 1), usize::MAX, ())
        .unwrap();
    assert!(!is_settled, "the lock is free after some grants");
    while !table.settle(&pin(), &NameQuery(7), ()) {}
    let granted = (0..200).map(|request| (request, WaitEnd::Granted(request + 1)));
    assert!(mailbox.read().into_iter().eq(granted));
    // One release of many grants many.
    let held = held(&table, holder(2))[&7];
    release_many(&table, holder(2), 7, held).unwrap();
    assert_eq!((mailbox.read().len() as u64, count(&table, 7)), (held, 200));
}

/// The lock of a queue is held for a bounded time at once. A grant compares all capacities of the requests, so with
/// more of them fewer requests are granted until the lock is free.
#[test]
fn p6_resize_grants_fewer_at_once_if_it_compares_more_capacities() {
    let granted_at_once = |capacities| {
        let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
        for request in 0..200 {
            let capacity = request % capacities;
            let of = demand(1 + capacity, capacity);
            must_wait(&table, &mailbox, 2, request, 7, of);
        }
        let large = Capacity::of(1_000_000, 1);
        let is_settled = table
            .resize(&pin(), &NameQuery(7), large, usize::MAX, ())
            .unwrap();
        assert!(!is_settled);
        mailbox.read().len()
    };
    let granted = [1, 200].map(granted_at_once);
    assert!(granted[0] == 64 && granted[1] <= 8, "{granted:?}");
}

/// W2: a queue ends with its last request, also if that is the last one for which the lock is held at once.
#[test]
fn w2_queue_ends_when_its_last_request_is_granted() {
    let requests = 64;
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    for request in 0..requests {
        must_wait(&table, &mailbox, 2, request, 7, demand(1, 0));
    }
    let is_settled = table
        .resize(
            &pin(),
            &NameQuery(7),
            Capacity::of(requests, 1),
            usize::MAX,
            (),
        )
        .unwrap();
    assert_eq!(
        (mailbox.read().len() as u64, waiting(&table, 7)),
        (requests, 0)
    );
    assert!(is_settled);
}

/// P8: a key is reclaimed by the second pass after its last use, whether a request has waited for it or not.
#[test]
fn p8_key_that_was_waited_for_is_kept_by_the_next_pass() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    must_wait(&table, &mailbox, 2, 0, 7, demand(1, 1));
    assert!(cancel(&table, holder(2), 0));
    release(&table, holder(1), 7).unwrap();
    for keys in [1, 0] {
        sweep(&table);
        assert_eq!(table.usage().keys, keys);
    }
}

/// P8: a key that is only waited for stays, and so do its requests.
#[track_caller]
fn assert_empty_but_waiting(table: &Table) {
    let before = table.usage();
    (0..3).for_each(|_| sweep(table));
    let after = table.usage();
    assert_eq!((after.keys, after.waiting), (before.keys, before.waiting));
    assert!(after.waiting > 0);
}

#[test]
fn p8_waited_for_key_stays_until_the_last_request_ends() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    must_wait(&table, &mailbox, 1, 0, 7, demand(3, 2));
    must_wait(&table, &mailbox, 2, 1, 7, demand(1, 0));
    assert_empty_but_waiting(&table);
    assert!(cancel(&table, holder(1), 0));
    assert_empty_but_waiting(&table);
    die(&table, holder(2));
    assert_empty(&table);
}

/// A weight above the capacity is refused by a call, waits as a request, and blocks no other one.
#[test]
fn p12_weight_above_the_capacity_waits_for_a_larger_one() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    let heavy = [
        demand(3, 2),
        demand(u64::MAX, 2),
        demand(u64::MAX, u64::MAX),
        demand(1, 0),
    ];
    for (request, of) in (0..).zip(heavy) {
        for key in [7, 8] {
            assert_eq!(acquire_many(&table, holder(1), key, of), None);
        }
        must_wait(&table, &mailbox, 1, request, 7, of);
    }
    assert_eq!(table.usage().keys, 1);
    assert_eq!(acquire_many(&table, holder(2), 7, demand(2, 2)), Some(2));
    must_wait(&table, &mailbox, 3, 9, 7, demand(2, 2));
    release(&table, holder(2), 7).unwrap();
    assert_eq!(held(&table, holder(1)), [].into(), "it collects nothing");
    assert_eq!(held(&table, holder(3)), [(7, 1)].into());
    release(&table, holder(2), 7).unwrap();
    assert_eq!(mailbox.read(), [(9, WaitEnd::Granted(2))]);
    resize(&table, 7, 3);
    assert_eq!(
        held(&table, holder(1)),
        [(7, 1)].into(),
        "the first one collects now"
    );
    release_many(&table, holder(3), 7, 2).unwrap();
    assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(3))]);
    assert_eq!(Capacity::MAX, Capacity::of(u64::MAX, 1));
    resize(&table, 7, u64::MAX);
    assert_eq!(mailbox.read(), [(3, WaitEnd::Granted(4))], "one permit");
    assert_eq!((waiting(&table, 7), count(&table, 7)), (2, 4));
}

/// P14: who gives must have all of them. Giving to oneself changes nothing.
#[test]
fn p14_give_moves_all_or_none() {
    let table = Table::new(16).unwrap();
    // Holder 1 has the permits of key 7 in its slot and in its overflow.
    acquire_all(&table, holder(1), [1, 7]);
    acquire_all(&table, holder(1), [2, 3, 7]);
    acquire(&table, holder(9), 7, 9).unwrap();
    assert_eq!(give(&table, holder(9), holder(1), 7, 1), Given::Given);
    let state = || {
        (
            held(&table, holder(1)),
            held(&table, holder(2)),
            permits(&table),
        )
    };
    let mine: BTreeMap<u64, u64> = [(1, 1), (2, 1), (3, 1), (7, 3)].into();
    let before = (mine.clone(), [].into(), 6);
    assert_eq!(state(), before);
    let watched = |is_alive: bool, permits| {
        let permits = NonZeroU64::new(permits).unwrap();
        let (giver, target) = (holder(1), holder(2));
        let watch = || Ok::<bool, OutOfMemory>(is_alive);
        table
            .give(&pin(), giver, target, &NameQuery(7), permits, watch)
            .unwrap()
    };
    assert_eq!(watched(true, 4), Given::NotHeld);
    assert_eq!(watched(false, 3), Given::NotAlive);
    for (key, permits, expected) in [
        (7, 3, Given::Given),
        (7, 4, Given::NotHeld),
        (9, 1, Given::NotHeld),
    ] {
        assert_eq!(give(&table, holder(1), holder(1), key, permits), expected);
    }
    assert_eq!(give(&table, holder(3), holder(1), 7, 1), Given::NotHeld);
    assert_eq!((state(), table.usage().totals.transferred), (before, 1));
    // Spread over all three, and what is left is released.
    for (permits, left) in [(1, 2), (2, 0)] {
        assert_eq!(watched(true, permits), Given::Given);
        let mut mine = mine.clone();
        mine.insert(7, left);
        mine.retain(|_, permits| *permits > 0);
        assert_eq!(state(), (mine, [(7, 3 - left)].into(), 6));
    }
    assert_eq!(
        (release(&table, holder(1), 7), count(&table, 7)),
        (Err(NotHeld), 3)
    );
    // Given on, given back, and released by whoever has them.
    assert_eq!(give(&table, holder(2), holder(3), 7, 2), Given::Given);
    assert_eq!(give(&table, holder(3), holder(1), 7, 1), Given::Given);
    for (number, permits) in [(1, 1), (2, 1), (3, 1)] {
        assert_eq!(release_many(&table, holder(number), 7, 2), Err(NotHeld));
        assert_eq!(release_many(&table, holder(number), 7, permits), Ok(()));
    }
    assert_eq!((count(&table, 7), die(&table, holder(1))), (0, 3));
    for number in 2..10 {
        die(&table, holder(number));
    }
    assert_empty(&table);
}

/// P4, P14: the death of the giver does not release a gift, the death of the target does.
#[test]
fn p14_death_releases_what_was_given() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    // With one place for both, the slot of the target is displaced.
    for place in [1, 2] {
        let [giver, target] = [displaced_holder(1, 1), displaced_holder(2, place)];
        acquire_all(&table, giver, [7, 7, 7]);
        must_wait(&table, &mailbox, 3, place, 7, demand(3, 3));
        assert_eq!(give(&table, giver, target, 7, 2), Given::Given);
        let taken = acquire(&table, target, 7, u64::MAX);
        assert_eq!(taken, Some(4));
        assert_eq!((die(&table, giver), mailbox.read()), (1, vec![]));
        assert_eq!((die(&table, target), die(&table, target)), (3, 0));
        assert_eq!(mailbox.read(), [(place, WaitEnd::Granted(3))]);
        assert_eq!(die(&table, holder(3)), 3);
    }
    assert_empty(&table);
}

/// A release takes a permit from the slot first, then from its overflow. A request of the same process collects
/// permits that it cannot release.
#[test]
fn o1_release_takes_from_the_slot_then_from_its_overflow() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(2), 7, 9).unwrap();
    assert_eq!(give(&table, holder(2), holder(1), 7, 1), Given::Given);
    acquire_all(&table, holder(1), [7, 7]);
    must_wait(&table, &mailbox, 1, 0, 7, demand(3, 4));
    assert_eq!(
        (held(&table, holder(1)), count(&table, 7)),
        ([(7, 4)].into(), 4)
    );
    assert_eq!(give(&table, holder(1), holder(2), 7, 4), Given::NotHeld);
    assert_eq!(release_many(&table, holder(1), 7, 4), Err(NotHeld));
    let inline = || table.release_inline(&pin(), holder(1), &NameQuery(7), ());
    let further = || table.release_known(&pin(), holder(1), &NameQuery(7), ());
    assert_eq!([inline(), inline(), inline()], [true, true, false]);
    assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(4))]);
    assert_eq!([further(), further(), further(), further()], [true; 4]);
    assert_eq!([further(), inline()], [false, false]);
    assert_eq!(release(&table, holder(1), 7), Err(NotHeld));
    let totals = table.usage().totals;
    assert_eq!(
        (totals.released, totals.granted, totals.not_held),
        (6, 6, 2)
    );
    assert_eq!(permits(&table), 0);
}

/// Permits that were handed over are reported like others, in pieces: those of a process with many keys, with and
/// without a slot, and those of many processes.
#[test]
fn inspection_reports_overflows_in_pieces() {
    let (table, mailbox) = (Table::<Name>::new(64).unwrap(), Mailbox::default());
    let (keys, processes) = (many(3000), many(3000));
    let mut expected = BTreeMap::new();
    let mut request = 0;
    // Holders 3 and 4 have no slot, 4 shares its place with 1. Holder 2 has some of the keys in its slot, too.
    for number in [2, 3, 4] {
        for key in 0..keys {
            acquire(&table, holder(1), key, u64::MAX).unwrap();
            let target = displaced_holder(number, number % 3);
            if number == 2 {
                let of = demand(1, number - 1);
                assert_eq!(
                    wait(&table, target, key, ask(&mailbox, request, of)),
                    Waited::Waiting
                );
                release(&table, holder(1), key).unwrap();
                request += 1;
            } else {
                assert_eq!(give(&table, holder(1), target, key, 1), Given::Given);
            }
            expected.insert((number, key), 1);
        }
    }
    assert_eq!(mailbox.read().len() as u64, keys);
    for key in (0..keys).step_by(3) {
        acquire(&table, displaced_holder(2, 2), key, u64::MAX).unwrap();
        expected.insert((2, key), 2);
    }
    for number in 100..100 + processes {
        acquire(&table, holder(1), 5, u64::MAX).unwrap();
        assert_eq!(give(&table, holder(1), holder(number), 5, 1), Given::Given);
        expected.insert((number, 5), 1);
    }
    assert_eq!(all_permits(&table), expected);
    for number in [2, 3, 4, 100] {
        let of_holder = expected.iter().filter(|((of, _), _)| *of == number);
        let of_holder = of_holder
            .map(|((_, key), permits)| (*key, *permits))
            .collect();
        assert_eq!(
            held(&table, displaced_holder(number, number % 3)),
            of_holder
        );
    }
    for key in [0, 5, keys - 1] {
        let of_key = expected.iter().filter(|((_, of), _)| *of == key);
        let of_key = of_key.map(|(row, permits)| (*row, *permits)).collect();
        assert_eq!(holders_of(&table, key), of_key);
    }
    assert!(table.knows(holder(4)) && table.knows(holder(100)) && !table.knows(holder(5)));
    // No piece is long.
    let mut pieces = Vec::new();
    in_pieces(Cursor::default(), |start| {
        let pin = pin();
        let (rows, next) = table.permits_from(&pin, start).unwrap();
        pieces.push(rows.len());
        next
    });
    assert!(pieces.iter().all(|rows| *rows <= 4096 + 1024), "{pieces:?}");
    assert!(cfg!(miri) || pieces.len() > 5, "{pieces:?}");
    let holding = 3 + processes as usize;
    assert_eq!(
        (permits(&table), table.usage().holders),
        (expected.values().sum(), holding)
    );
    // A process that dies between two pieces.
    let mut rows = BTreeSet::new();
    let mut is_first = true;
    in_pieces(Cursor::default(), |start| {
        let pin = pin();
        let (piece, next) = table.permits_from(&pin, start).unwrap();
        for row in piece {
            let is_new = rows.insert((row.holder - 1, row.key.number()));
            assert!(is_new, "reported twice");
        }
        if mem::take(&mut is_first) {
            assert_eq!(die(&table, displaced_holder(4, 1)), keys);
        }
        next
    });
    let others = expected.into_keys().filter(|(number, _)| *number != 4);
    assert!(others.into_iter().all(|row| rows.contains(&row)));
}

/// Each lock protects the queues of about 400 keys. They are copied in pieces, one or two per lock.
#[test]
fn inspection_reports_the_queues_in_pieces() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    let keys = if cfg!(miri) { 100 } else { 100_000 };
    for key in 0..keys {
        must_wait(&table, &mailbox, 1, key, key, demand(1, 0));
    }
    let mut read = BTreeSet::new();
    let mut pieces = vec![];
    in_pieces((0, 0), |start| {
        let pin = pin();
        let (queues, next) = table.queues_from(&pin, start).unwrap();
        pieces.push(queues.len());
        for line in queues {
            assert!(line.waiting == 1 && read.insert(line.key.number()));
        }
        next
    });
    assert_eq!(read.len() as u64, keys);
    assert!(pieces.iter().all(|queues| *queues <= 256), "{pieces:?}");
    assert!(
        cfg!(miri) || (300..=600).contains(&pieces.len()),
        "{pieces:?}"
    );
}

/// A key whose hash all keys have.
struct Colliding(u64);

impl Hash for Colliding {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Equivalent<Name> for Colliding {
    fn equivalent(&self, key: &Name) -> bool {
        self.0 == key.number()
    }
}

impl Query<Name> for Colliding {
    fn to_key(&self) -> Result<Name, OutOfMemory> {
        NameQuery(self.0).to_key()
    }
}

/// A piece can end between two sort keys only. So keys with one hash are in one piece, and each is reported once.
#[test]
fn inspection_reports_keys_with_one_hash_in_one_piece() {
    let (table, mailbox) = (Table::<Name>::new(16).unwrap(), Mailbox::default());
    let keys = many(1500);
    let watch = || Ok::<(), OutOfMemory>(());
    for key in 0..keys {
        let one = Capacity::of(1, 1);
        let acquired = table.acquire(&pin(), holder(1), &Colliding(key), one, watch);
        assert_eq!(acquired, Ok(Acquired::Permit(1)));
        let ask = ask(&mailbox, key, demand(1, 1));
        let waited = table.wait(&pin(), holder(2), &Colliding(key), ask, watch, ());
        assert_eq!(waited, Ok(Waited::Waiting));
    }
    // Others, in later pieces.
    (keys..2 * keys).for_each(|key| must_wait(&table, &mailbox, 2, key, key, demand(1, 0)));
    let mut seen = BTreeSet::new();
    in_pieces((0, 0), |start| {
        let pin = pin();
        let (queues, next) = table.queues_from(&pin, start).unwrap();
        for queue in queues {
            assert!(seen.insert(queue.key.number()), "reported twice");
        }
        next
    });
    assert!(seen.into_iter().eq(0..2 * keys));
    let expected: BTreeMap<u64, u64> = (0..keys).map(|key| (key, 1)).collect();
    assert_eq!(held(&table, holder(1)), expected);
    let rows = all_permits(&table).into_iter();
    let rows = rows.map(|((_, key), permits)| (key, permits));
    assert!(rows.eq(expected));
}

/// A process gets its slot during a walk in pieces. The permits that it was given before are reported once, also after
/// it has died.
#[test]
fn inspection_reports_a_process_that_gets_a_slot_meanwhile() {
    for dies in [false, true] {
        let table = Table::<Name>::new(64).unwrap();
        // More than a piece, except in an interpreter.
        acquire_all(&table, holder(40), 0..many(3000));
        assert_eq!(give(&table, holder(40), holder(3), 5, 1), Given::Given);
        let mut given = 0;
        let mut pieces = 0;
        in_pieces(Cursor::default(), |start| {
            let pin = pin();
            let (rows, next) = table.permits_from(&pin, start).unwrap();
            for row in rows {
                given += u64::from((row.holder - 1, row.key.number()) == (3, 5));
            }
            pieces += 1;
            acquire(&table, holder(3), 9999, 9).unwrap();
            if dies && given > 0 {
                die(&table, holder(3));
            }
            next
        });
        assert!(cfg!(miri) || pieces > 1);
        assert_eq!(given, 1, "it had the permit until it was reported");
    }
}

/// P4: a process with the pid of a dead one holds what was given or handed over to that one, and its requests wait on.
#[test]
fn p4_process_with_a_reused_pid_inherits_credits_and_requests() {
    for place in [1, 2] {
        for has_slot in [false, true] {
            let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
            acquire_all(&table, holder(1), [7, 7, 8]);
            let heir = displaced_holder(5, place);
            assert_eq!(give(&table, holder(1), heir, 7, 1), Given::Given);
            if has_slot {
                assert_eq!(
                    wait(&table, heir, 8, ask(&mailbox, 0, demand(2, 2))),
                    Waited::Waiting
                );
                assert_eq!(
                    wait(&table, heir, 7, ask(&mailbox, 1, demand(1, 2))),
                    Waited::Waiting
                );
            }
            let before = (all_permits(&table), table.usage().waiting);
            assert_eq!(table.release_all(&pin(), heir, || true, ()), 0);
            assert_eq!((all_permits(&table), table.usage().waiting), before);
            if has_slot {
                assert_eq!(
                    held(&table, heir),
                    [(7, 1), (8, 1)].into(),
                    "with the collected one"
                );
                release(&table, holder(1), 8).unwrap();
                assert_eq!(mailbox.read(), [(0, WaitEnd::Granted(2))]);
                assert!(cancel(&table, heir, 1));
            }
            release(&table, heir, 7).unwrap();
            assert_eq!(give(&table, holder(1), heir, 7, 1), Given::Given);
            let held = if has_slot { 3 } else { 1 };
            assert_eq!((die(&table, heir), die(&table, heir)), (held, 0));
            die(&table, holder(1));
            assert_empty(&table);
        }
    }
}

/// P13: requests with the same request_hash are distinguished by their notices. Only their process can cancel them.
#[test]
fn p13_cancel_ends_one_request() {
    let (table, mailbox) = (Table::new(16).unwrap(), Mailbox::default());
    acquire_all(&table, holder(1), 0..3);
    let request = |number, key, request| {
        let mut ask = ask(&mailbox, request, demand(1, 1));
        ask.request_hash = 0;
        assert_eq!(wait(&table, holder(number), key, ask), Waited::Waiting);
    };
    // Two keys and two processes. The numbers of different keys can be the same.
    for index in 0..8 {
        request(2 + index % 2, index % 3, index);
    }
    let before = allocated();
    let cancel = |number, request| {
        let is_it = |mail: &Mail| mail.number() == request;
        let ended = table.cancel(&pin(), holder(number), 0, is_it, ());
        ended.is_some()
    };
    assert!(!cancel(3, 4) && !cancel(2, 9) && !cancel(7, 4));
    assert_eq!((table.usage().waiting, allocated()), (8, before));
    for (left, index) in [4, 0, 7, 3, 1, 6, 5, 2].into_iter().enumerate() {
        assert!(cancel(2 + index % 2, index));
        assert!(!cancel(2 + index % 2, index));
        assert_eq!(table.usage().waiting, 7 - left);
    }
    assert_eq!((mailbox.read(), permits(&table)), (vec![], 3));
}

/// H3: a process is watched before it waits or is given a permit. If it cannot be watched, nothing has changed.
#[test]
fn h3_lg2_process_is_watched_before_it_waits_or_is_given_a_permit() {
    let (table, mailbox) = (Table::<Name>::new(16).unwrap(), Mailbox::default());
    acquire(&table, holder(1), 7, 1).unwrap();
    let before = table.usage();
    let wait = |watch: &mut dyn FnMut() -> Result<(), OutOfMemory>| {
        let ask = ask(&mailbox, 0, demand(1, 1));
        table.wait(&pin(), holder(2), &NameQuery(7), ask, watch, ())
    };
    assert_eq!(wait(&mut || Err(OutOfMemory)), Err(OutOfMemory));
    let give = |watch: &mut dyn FnMut() -> Result<bool, OutOfMemory>| {
        table.give(
            &pin(),
            holder(1),
            holder(3),
            &NameQuery(7),
            NonZeroU64::MIN,
            watch,
        )
    };
    assert_eq!(give(&mut || Err(OutOfMemory)), Err(OutOfMemory));
    assert_eq!(give(&mut || Ok(false)), Ok(Given::NotAlive));
    let after = table.usage();
    assert_eq!((after.waiting, after.permits, after.holders), (0, 1, 1));
    assert_eq!(after.totals, before.totals);
    let mut watched = 0;
    let mut watch = || {
        watched += 1;
        assert_eq!(waiting(&table, 7), 0);
        Ok(())
    };
    assert_eq!(
        [wait(&mut watch), wait(&mut watch)],
        [Ok(Waited::Waiting); 2]
    );
    assert_eq!(watched, 1);
    let mut watched = 0;
    let mut watch = || {
        watched += 1;
        Ok(true)
    };
    assert_eq!(
        [give(&mut watch), give(&mut watch)],
        [Ok(Given::Given), Ok(Given::NotHeld)]
    );
    assert_eq!(watched, 1);
    let unsatisfiable = Capacity::of(0, 1);
    let watch = || Ok::<(), OutOfMemory>(());
    let acquired = table.acquire(&pin(), holder(2), &NameQuery(8), unsatisfiable, watch);
    assert_eq!(acquired, Ok(Acquired::Full));
}
