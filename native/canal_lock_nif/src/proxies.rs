//! Proxies: local processes that hold permits for processes on other nodes.
//!
//! Each holder on another node has one local process that acquires and releases for it, its **proxy**
//! (`canal_lock_proxy.erl`). To the table a proxy is a holder like any other. This file records which proxy represents
//! which process. The manager finds proxies by these records, and inspections return the remote pid. The records belong
//! to the table, so they survive the manager.
//!
//! - **R1** A holder on another node has at most one live proxy in a table: [`Proxies::represent`] refuses a second
//!   one.
//! - **R2** The callback for the death of a proxy removes its record after it has released its permits. So no
//!   inspection returns the proxy as a holder. An inspection reads the permits first and the record afterwards. If
//!   there is no record, it leaves out the process unless the table still has a slot for it.

use crate::enif::{CallEnv, ErlNifTerm};
use crate::key::{decode, EncodedTerm, StoredKey};
use crate::{caller::Caller, error::CallError};
use equivalent::Equivalent;
use parking_lot::Mutex;
use permit_table::{inject, OutOfMemory, Query, SortedList};
use rustler::{LocalPid, Monitor};

/// The proxies of one table.
///
/// A panic under the lock (a bug in this library) unlocks it and changes no record: all steps that can fail come before
/// the first change.
#[derive(Default)]
pub(crate) struct Proxies(Mutex<Records>);

#[derive(Default)]
struct Records {
    /// By the digests of the holders.
    by_holder: SortedList<Record>,
    /// By the words of the proxies.
    by_proxy: SortedList<ProxyIndex>,
}

struct Record {
    holder: StoredKey,
    proxy: Caller,
}

/// Finds the record of a proxy.
struct ProxyIndex {
    /// The monitor by which the VM reports the death of the proxy.
    monitor: Monitor,
    /// The digest of the holder.
    digest: u64,
}

impl Proxies {
    /// Records that the calling process represents `holder` and no other process, after `watch` has made the VM monitor
    /// it. If another live process represents `holder`, returns that process and changes nothing.
    pub(crate) fn represent(
        &self,
        call: CallEnv<'_>,
        holder: &EncodedTerm<'_>,
        watch: impl FnOnce() -> Result<Monitor, CallError>,
    ) -> Result<Option<Caller>, CallError> {
        let (proxy, digest) = (Caller::of(call), holder.digest());
        let record = Record {
            holder: holder.to_key()?,
            proxy,
        };
        let records = &mut *self.0.lock();
        let previous = records.proxy(holder);
        if let Some(other) = previous.filter(|&other| other != proxy && is_alive(call, other)) {
            return Ok(Some(other));
        }
        let by_holder = records.by_holder.reserve(digest)?;
        let by_proxy = records.by_proxy.reserve(proxy.word())?;
        let monitor = watch()?;
        inject::panic();
        by_proxy.insert(ProxyIndex { monitor, digest });
        by_holder.insert(record);
        // The previous proxy, and a previous process with this proxy's pid. The VM is about to report their deaths.
        for dead in previous.into_iter().chain([proxy]) {
            records.remove(dead, |row| row.monitor != monitor);
        }
        Ok(None)
    }

    /// The proxy of a process on another node.
    pub(crate) fn proxy(&self, holder: &EncodedTerm<'_>) -> Option<Caller> {
        self.0.lock().proxy(holder)
    }

    /// The process that a proxy represents.
    pub(crate) fn holder(
        &self,
        call: CallEnv<'_>,
        proxy: Caller,
    ) -> Result<Option<ErlNifTerm>, OutOfMemory> {
        let records = self.0.lock();
        let Some(row) = records.by_proxy.find(proxy.word(), |_| true) else {
            return Ok(None);
        };
        let is_own = |record: &Record| record.proxy == proxy;
        let record = records.by_holder.find(row.digest, is_own);
        let holder = record.map(|record| decode::term(call, &record.holder));
        holder.transpose()
    }

    /// Removes the record of a dead proxy with this monitor. A later process with the same pid has another monitor.
    pub(crate) fn forget(&self, proxy: Caller, monitor: Monitor) {
        inject::panic();
        self.0.lock().remove(proxy, |row| row.monitor == monitor);
    }
}

impl Records {
    fn proxy(&self, holder: &EncodedTerm<'_>) -> Option<Caller> {
        let is_of = |record: &Record| holder.equivalent(&record.holder);
        let record = self.by_holder.find(holder.digest(), is_of)?;
        Some(record.proxy)
    }

    fn remove(&mut self, proxy: Caller, matches: impl Fn(&ProxyIndex) -> bool) {
        if let Some(row) = self.by_proxy.remove(proxy.word(), matches) {
            let is_own = |record: &Record| record.proxy == proxy;
            self.by_holder.remove(row.digest, is_own);
        }
    }
}

fn is_alive(call: CallEnv<'_>, process: Caller) -> bool {
    let pid = call.term(process.pid()).decode::<LocalPid>();
    pid.is_ok_and(|pid| pid.is_alive(call.env()))
}
