//! Interned keys: long keys, read once per call by a dirty scheduler, and then compared by address. And stored keys,
//! which own an encoded key or share an interned one.
//!
//! A call must not occupy a scheduler for long, and a call that counts must not run on a dirty scheduler. So a call
//! whose key is long returns [`CallError::Long`] before it changes anything, and the Erlang side has the key
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

use super::encoded_key::{EncodedKey, EncodedTerm};
use super::{encoding::tag, reader::ReadMode, walk::with_verified_encoding};
use crate::enif::{CallEnv, ErlNifTerm};
use crate::error::{contain_panic, CallError};
use equivalent::Equivalent;
use parking_lot::Mutex;
use permit_table::{inject, reserve, Key, Ordered, OutOfMemory, Query, SortedList};
use rustler::{Env, Resource};
use std::panic::RefUnwindSafe;
use std::sync::{Arc, LazyLock, Weak};
use std::{mem, ptr};

/// A long key, shared by stored keys and handles.
pub(crate) struct Interned {
    pub(super) key: EncodedKey,
    digest: u64,
}

/// A long key for one call, until it is emptied. To Erlang, it is a reference.
pub(crate) struct Handle(Mutex<Option<Arc<Interned>>>);

#[rustler::resource_impl]
impl Resource for Handle {
    const IMPLEMENTS_DESTRUCTOR: bool = true;

    fn destructor(self, _: Env<'_>) {
        let _ = contain_panic(|| drop(self));
    }
}

// A panic leaves it full or empty.
impl RefUnwindSafe for Handle {}

#[derive(Default)]
struct Registry {
    registered: SortedList<Registered>,
    /// How many have been registered so far.
    additions: u64,
    /// Keys to free.
    unused: Vec<EncodedKey>,
}

struct Registered {
    digest: u64,
    interned: Weak<Interned>,
}

impl Ordered for Registered {
    fn order(&self) -> u64 {
        self.digest
    }
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

impl Handle {
    /// Interns a long key, for a call on a normal scheduler. To be called on a dirty scheduler.
    pub(crate) fn of(call: CallEnv<'_>, term: ErlNifTerm) -> Result<Self, CallError> {
        free_unused();
        match with_verified_encoding(call, term, ReadMode::Verified, |_| ()) {
            Err(CallError::Long) => {}
            // Calls would not find this key if it were interned (N2).
            Ok(()) => return Err(CallError::BadArg),
            Err(other) => return Err(other),
        }
        let interned = with_verified_encoding(call, term, ReadMode::OnDirtyScheduler, intern)??;
        Ok(Self(Mutex::new(Some(interned))))
    }

    /// Calls `with` with the encoded key, and keeps the key during the call.
    ///
    /// # Errors
    /// [`CallError::BadArg`], if the handle has been emptied.
    pub(crate) fn with_encoding<T>(
        &self,
        with: impl FnOnce(&EncodedTerm<'_>) -> T,
    ) -> Result<T, CallError> {
        let interned = self.0.lock().clone().ok_or(CallError::BadArg)?;
        let address = Arc::as_ptr(&interned).expose_provenance();
        Ok(with(&EncodedTerm::of(&[tag::INTERNED, address as u64])))
    }

    /// Drops the key after the call that needed the handle.
    pub(crate) fn empty(&self) {
        inject::panic();
        let interned = self.0.lock().take();
        drop(interned);
    }
}

/// Returns the interned key of an encoded term (N1).
fn intern(term: &EncodedTerm<'_>) -> Result<Arc<Interned>, OutOfMemory> {
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
                key: EncodedKey::of(term)?,
                digest,
            }),
        };
        if REGISTRY.lock().add(&own, additions)? {
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
    for same in registered.take_while(|other| other.digest == digest) {
        reserve(&mut candidates, 1)?;
        candidates.push(same.interned.clone());
    }
    Ok((candidates, registry.additions))
}

impl Registry {
    /// Adds a key if no other was added since there were `additions`. Returns whether it did.
    fn add(&mut self, new: &Arc<Interned>, additions: u64) -> Result<bool, OutOfMemory> {
        if self.additions != additions {
            return Ok(false);
        }
        self.registered.reserve(new.digest)?.insert(Registered {
            digest: new.digest,
            interned: Arc::downgrade(new),
        });
        self.additions += 1;
        Ok(true)
    }
}

impl Drop for Interned {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock();
        // This may remove the entry of another unused key with this digest, whose drop then removes this entry.
        let is_unused = |other: &Registered| other.interned.strong_count() == 0;
        registry.registered.remove(self.digest, is_unused);
        // Without memory for the list, the key is freed here.
        if registry.unused.try_reserve(1).is_ok() {
            let key = mem::replace(&mut self.key, EncodedKey::EMPTY);
            registry.unused.push(key);
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

/// A stored key, which a table compares with encoded terms: an encoded key, or the encoded address of an interned key,
/// of which it then owns one count.
#[repr(transparent)]
pub(crate) struct StoredKey(EncodedKey);

impl StoredKey {
    /// The key's own encoding, or that of the interned key.
    pub(super) fn encoded(&self) -> &EncodedKey {
        // SAFETY: counted since `to_key`, until `drop`.
        let interned = self.interned().map(|interned| unsafe { &*interned });
        interned.map_or(&self.0, |interned| &interned.key)
    }

    /// Whether the key has a copy of its own of a term, and this term is `=:=` to it.
    pub(super) fn is_copy_of(&self, term: ErlNifTerm) -> bool {
        self.0.is_copy_of(term)
    }

    fn interned(&self) -> Option<*const Interned> {
        let address = self.0.interned_address()?;
        Some(ptr::with_exposed_provenance(address as usize))
    }
}

impl Key for StoredKey {
    /// Counts an interned key in full for each key that shares it.
    fn heap_bytes(&self) -> usize {
        self.encoded().heap_bytes()
    }
}

impl Drop for StoredKey {
    fn drop(&mut self) {
        if let Some(interned) = self.interned() {
            // SAFETY: from an `Arc`, counted since `to_key`, and dropped once.
            drop(unsafe { Arc::from_raw(interned) });
        }
    }
}

impl Equivalent<StoredKey> for EncodedTerm<'_> {
    #[inline(always)]
    fn equivalent(&self, key: &StoredKey) -> bool {
        key.0.is_equal(self)
    }
}

impl Query<StoredKey> for EncodedTerm<'_> {
    fn to_key(&self) -> Result<StoredKey, OutOfMemory> {
        let key = StoredKey(EncodedKey::of(self)?);
        if let Some(interned) = key.interned() {
            // SAFETY: made by `Handle::with_encoding`, which keeps the interned key during the term. The new key owns
            // this count.
            unsafe { Arc::increment_strong_count(interned) };
        }
        Ok(key)
    }
}
