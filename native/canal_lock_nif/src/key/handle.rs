//! Handles on interned keys, by which a call with a long key is repeated on a normal scheduler.

use super::encoded_term::EncodedTerm;
use super::interned::{self, Interned};
use super::namespace::Namespace;
use super::{reader::ReadMode, walk::with_verified_encoding};
use crate::enif::{CallEnv, ErlNifTerm};
use crate::error::{contain_panic, CallError};
use parking_lot::Mutex;
use permit_table::inject;
use rustler::{Atom, Env, NifResult, Resource, ResourceArc, Term};
use std::panic::RefUnwindSafe;
use std::sync::Arc;

mod atoms {
    rustler::atoms! { ok }
}

/// A long key for one call, until it is emptied. To Erlang, it is a reference.
pub(crate) struct Handle(Mutex<Option<Arc<Interned>>>);

#[rustler::resource_impl]
impl Resource for Handle {
    fn destructor(self, _: Env<'_>) {
        let _ = contain_panic(|| drop(self));
    }
}

// A panic leaves it full or empty.
impl RefUnwindSafe for Handle {}

/// Calls `with` with the verified encoding of a key, or with the interned key of a handle, which it keeps during the
/// call.
///
/// # Errors
/// [`CallError::Long`], if the key is long. [`CallError::BadArg`], if the handle has been emptied.
pub(crate) fn with_key<T>(
    call: CallEnv<'_>,
    namespace: Namespace,
    key: ErlNifTerm,
    with: impl FnOnce(&EncodedTerm<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    let Ok(handle) = call.term(key).decode::<ResourceArc<Handle>>() else {
        return with_verified_encoding(call, namespace, key, ReadMode::Verified, with)?;
    };
    let interned = handle.0.lock().clone().ok_or(CallError::BadArg)?;
    with(&EncodedTerm::of(&interned.words(namespace)))
}

/// `intern(Key) -> Handle`: for the repetition of a call that has raised `intern`. Dirty, because the key is long.
#[rustler::nif(schedule = "DirtyCpu")]
fn intern(env: Env, key: Term) -> NifResult<ResourceArc<Handle>> {
    interned::free_unused();
    let (call, key) = (CallEnv::from_env(env), key.as_c_arg());
    // A handle belongs to no namespace. The call that uses it chooses one.
    let namespace = Namespace::Local;
    match with_verified_encoding(call, namespace, key, ReadMode::Verified, |_| ()) {
        Err(CallError::Long) => {}
        // Calls would not find this key if it were interned (N2).
        Ok(()) => return Err(CallError::BadArg.into()),
        Err(other) => return Err(other.into()),
    }
    let mode = ReadMode::OnDirtyScheduler;
    let interned = with_verified_encoding(call, namespace, key, mode, interned::intern)?;
    let interned = interned.map_err(CallError::from)?;
    Ok(ResourceArc::new(Handle(Mutex::new(Some(interned)))))
}

/// `forget(Handle) -> ok`: empties the handle after its call. A panic here only wastes memory: it must not replace the
/// answer of that call.
#[rustler::nif]
fn forget(handle: ResourceArc<Handle>) -> Atom {
    let _ = contain_panic(|| {
        inject::panic();
        let interned = handle.0.lock().take();
        drop(interned);
    });
    atoms::ok()
}
