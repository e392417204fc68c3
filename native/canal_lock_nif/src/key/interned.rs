//! Interned keys: long keys, read once per call by a dirty scheduler, and then compared by address.
//!
//! A call must not occupy a scheduler for long, and a call that counts must not run on a dirty scheduler. So a call
//! whose key is long returns `CallError::Long` before it changes anything, and the Erlang side has the key
//! **interned**: a dirty scheduler reads it and looks for an equal key in use. The Erlang side then repeats the call
//! with a handle on that interned key, on a normal scheduler, which compares addresses. After the call the Erlang side
//! empties the handle. A handle on the heap of a process that does not collect its garbage would otherwise keep the key
//! as long as the process lives. If a process is killed between the two calls, the VM frees its handle with its other
//! terms.
//!
//! - **N1** Of equal long keys in use, by a table or a handle, there is one `Interned`, so equal addresses mean equal
//!   keys. A search finds it while it is in use: `Weak::upgrade` returns it or proves that it is no longer in use. A
//!   new one is registered only if no other was registered since the search began.
//! - **N2** Whether a key is long depends only on its value. So either all equal keys are interned, or none.
//! - **N3** The lock is held for microseconds (`sorted_list.rs`, S2), and never while a key is read, compared, made or
//!   freed. A dirty scheduler also frees the keys that are no longer in use ([`free_unused`]), because returning a
//!   gigabyte to the system takes long.
//!
//! A panic under the lock (a bug in this library) unlocks it, and leaves at most one entry without a key.

use super::encoded_term::EncodedTerm;
use super::encoding::tag;
use super::large_key::LargeKey;
use super::namespace::Namespace;
use parking_lot::Mutex;
use permit_table::{inject, reserve, OutOfMemory, SortedList};
use std::sync::{Arc, LazyLock, Weak};
use std::{mem, ptr};

/// A long key, shared by stored keys and handles.
pub(super) struct Interned {
    pub(super) key: LargeKey,
    digest: u64,
}

#[derive(Default)]
struct Registry {
    /// By their digests.
    registered: SortedList<Weak<Interned>>,
    /// How many have been registered so far.
    additions: u64,
    /// Keys to free.
    unused: Vec<LargeKey>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

impl Interned {
    /// The words of its handles. Its address, because there is one such key (N1).
    pub(super) fn words(self: &Arc<Self>, namespace: Namespace) -> [u64; 2] {
        let address = Arc::as_ptr(self).expose_provenance() as u64;
        [namespace.flip(tag::INTERNED), address]
    }

    /// The interned key with an address of [`words`](Self::words).
    ///
    /// # Safety
    /// It is in use, and stays in use during this call.
    pub(super) unsafe fn from_address(address: u64) -> Arc<Self> {
        let interned = ptr::with_exposed_provenance(address as usize);
        // SAFETY: `words` took it from an `Arc` that is alive. The new one has a count of its own.
        unsafe {
            Arc::increment_strong_count(interned);
            Arc::from_raw(interned)
        }
    }
}

/// Returns the interned key of an encoded term (N1).
pub(super) fn intern(term: &EncodedTerm<'_>) -> Result<Arc<Interned>, OutOfMemory> {
    let digest = term.digest();
    let mut new = None;
    loop {
        let (candidates, additions) = candidates(digest)?;
        let mut candidates = candidates.iter().filter_map(Weak::upgrade);
        if let Some(found) = candidates.find(|other| other.key.is_equal(term)) {
            return Ok(found);
        }
        let own = match new.take() {
            Some(own) => own,
            None => Arc::new(Interned {
                key: LargeKey::of(term)?,
                digest,
            }),
        };
        let mut registry = REGISTRY.lock();
        // Otherwise another key was added since the search began.
        if registry.additions == additions {
            let vacancy = registry.registered.reserve(digest)?;
            vacancy.insert(Arc::downgrade(&own));
            registry.additions += 1;
            return Ok(own);
        }
        new = Some(own);
    }
}

/// All interned keys with this digest, and the number of additions so far.
fn candidates(digest: u64) -> Result<(Vec<Weak<Interned>>, u64), OutOfMemory> {
    let registry = REGISTRY.lock();
    let mut candidates = Vec::new();
    let registered = registry.registered.from(digest);
    for (_, same) in registered.take_while(|(other, _)| *other == digest) {
        reserve(&mut candidates, 1)?;
        candidates.push(same.clone());
    }
    Ok((candidates, registry.additions))
}

impl Drop for Interned {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock();
        // This may remove the entry of another unused key with this digest, whose drop then removes this entry.
        let is_unused = |other: &Weak<Interned>| other.strong_count() == 0;
        registry.registered.remove(self.digest, is_unused);
        // Without memory for the list, the key is freed here.
        if registry.unused.try_reserve(1).is_ok() {
            registry.unused.push(mem::take(&mut self.key));
        }
    }
}

/// Whether [`free_unused`] has anything to free.
pub(crate) fn has_unused() -> bool {
    !REGISTRY.lock().unused.is_empty()
}

/// Frees the long keys that are no longer in use. To be called on a dirty scheduler.
pub(crate) fn free_unused() {
    inject::panic();
    let unused = mem::take(&mut REGISTRY.lock().unused);
    drop(unused);
}
