//! Holders on other nodes, and the local processes that hold permits for them.
//!
//! The VM lets a native library monitor local processes only. So each holder on another node has one process on this
//! node that acquires and releases for it, its **proxy** (`canal_lock_proxy.erl`), which monitors it and exits with it.
//! To the table a proxy is a holder like any other: its death releases its permits (P4). Here is recorded which proxy
//! represents which process. By this record the manager finds the proxy, and calls that show holders show the remote
//! pid. It belongs to the table, so it survives the manager.
//!
//! - **R1** A holder on another node has at most one live proxy in a table: [`Proxies::represent`] refuses a second
//!   one.
//! - **R2** A record is removed after the permits of its proxy have been released, by the same callback: so the permits
//!   are never shown as held by the proxy. A look sees the permits first and looks for the record afterwards. Where it
//!   finds none, it asks the table whether the process still has a slot, and tells nothing of one that has none.

use crate::caller::Caller;
use crate::enif::{CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::key::read::Reading;
use crate::key::{decode, TermKey};
use equivalent::Equivalent;
use parking_lot::Mutex;
use permit_table::{fault, Ordered, OutOfMemory, Query, SortedList};
use rustler::{LocalPid, Monitor};

/// The proxies of one table.
///
/// A panic inside the lock (a bug of ours) leaves it free, and the records as they were before the call: what can fail
/// comes before the first change.
#[derive(Default)]
pub(crate) struct Proxies(Mutex<Records>);

#[derive(Default)]
struct Records {
    by_holder: SortedList<Record>,
    by_proxy: SortedList<ByProxy>,
}

struct Record {
    holder: TermKey,
    digest: u64,
    proxy: Caller,
}

/// Leads from a proxy to its record.
struct ByProxy {
    proxy: Caller,
    /// The one by which the VM reports the death of the proxy.
    monitor: Monitor,
    /// That of the holder.
    digest: u64,
}

impl Ordered for Record {
    fn order(&self) -> u64 {
        self.digest
    }
}

impl Ordered for ByProxy {
    fn order(&self) -> u64 {
        self.proxy.word()
    }
}

impl Proxies {
    /// Records that the calling process represents `holder` and no other process, after `watch` has had the VM monitor
    /// it. If another process that is alive represents `holder`, nothing changes, and that one is the answer.
    pub(crate) fn represent(
        &self,
        call: CallEnv<'_>,
        holder: &Reading<'_>,
        watch: impl FnOnce() -> Result<Monitor, CallError>,
    ) -> Result<Option<Caller>, CallError> {
        let proxy = Caller::of(call);
        let record = Record {
            holder: holder.to_key()?,
            digest: holder.digest(),
            proxy,
        };
        let records = &mut *self.0.lock();
        let before = records.proxy(holder);
        if let Some(other) = before.filter(|&other| other != proxy && is_alive(call, other)) {
            return Ok(Some(other));
        }
        let by_holder = records.by_holder.reserve(record.digest)?;
        let by_proxy = records.by_proxy.reserve(proxy.word())?;
        let monitor = watch()?;
        fault::point();
        by_proxy.insert(ByProxy {
            proxy,
            monitor,
            digest: record.digest,
        });
        by_holder.insert(record);
        // The proxy before, and a proxy that had the pid of this one before: their deaths are about to be handled.
        for dead in before.into_iter().chain([proxy]) {
            records.remove(dead, |row| row.monitor != monitor);
        }
        Ok(None)
    }

    /// The proxy of a process on another node.
    pub(crate) fn proxy(&self, holder: &Reading<'_>) -> Option<Caller> {
        self.0.lock().proxy(holder)
    }

    /// The process that a proxy represents.
    pub(crate) fn holder(
        &self,
        call: CallEnv<'_>,
        proxy: Caller,
    ) -> Result<Option<ErlNifTerm>, OutOfMemory> {
        let records = self.0.lock();
        let row = records
            .by_proxy
            .find(proxy.word(), |row| row.proxy == proxy);
        let record = row.and_then(|row| {
            records
                .by_holder
                .find(row.digest, |record| record.proxy == proxy)
        });
        record
            .map(|record| decode::term(call, &record.holder))
            .transpose()
    }

    /// Removes the record of a proxy that has died, and that this monitor was of. A process that has got the same pid
    /// since has another monitor.
    pub(crate) fn forget(&self, proxy: Caller, monitor: Monitor) {
        fault::point();
        self.0.lock().remove(proxy, |row| row.monitor == monitor);
    }
}

impl Records {
    fn proxy(&self, holder: &Reading<'_>) -> Option<Caller> {
        let is_of = |record: &Record| holder.equivalent(&record.holder);
        let record = self.by_holder.find(holder.digest(), is_of)?;
        Some(record.proxy)
    }

    fn remove(&mut self, proxy: Caller, is_meant: impl Fn(&ByProxy) -> bool) {
        let is_wanted = |row: &ByProxy| row.proxy == proxy && is_meant(row);
        if let Some(row) = self.by_proxy.remove(proxy.word(), is_wanted) {
            self.by_holder
                .remove(row.digest, |record| record.proxy == proxy);
        }
    }
}

fn is_alive(call: CallEnv<'_>, process: Caller) -> bool {
    let pid = call.term(process.pid()).decode::<LocalPid>();
    pid.is_ok_and(|pid| pid.is_alive(call.env()))
}
