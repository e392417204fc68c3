//! The floor of the benchmarks: the least cost of an acquire and a release as two NIF calls.
//!
//! It has one counter for all keys, no holders and no death watch. Each call decodes its two integers by the documented
//! API, does one atomic step and builds the same answer as the library. The difference between the library and the
//! floor is the cost of keys, holders and reclamation, without the cost of the border.
//!
//! The functions are raw NIFs, registered by hand. `#[rustler::nif]` would allocate a `Vec` of terms for each call,
//! which costs more than the library's own calls. These functions cannot panic, so they catch nothing.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustler::codegen_runtime::{c_int, inventory};
use rustler::sys::{
    enif_make_badarg, enif_make_tuple_from_array, ErlNifEnv, ERL_NIF_TERM as ErlNifTerm,
};
use rustler::types::atom::ok;
use rustler::{Encoder, Env, SchedulerFlags, Term};

mod atoms {
    rustler::atoms! { acquired, full }
}

/// Alone on its cache line, and on the adjacent line that the processor fetches with it.
#[repr(align(128))]
struct Padded(AtomicU64);

static PERMITS: Padded = Padded(AtomicU64::new(0));

type RawNif = unsafe extern "C" fn(*mut ErlNifEnv, c_int, *const ErlNifTerm) -> ErlNifTerm;

const fn raw_nif(name: &'static CStr, function: RawNif) -> rustler::Nif {
    rustler::Nif {
        name: name.as_ptr(),
        arity: 3,
        flags: SchedulerFlags::Normal as u32,
        raw_func: function,
    }
}

inventory::submit!(raw_nif(c"floor_acquire", floor_acquire));
inventory::submit!(raw_nif(c"floor_release", floor_release));

rustler::init!("bench_floor_nif", load = load);

/// Makes the atoms at load, so that no measured call makes them.
fn load(_env: Env, _load_info: Term) -> bool {
    let _ = (atoms::acquired(), atoms::full(), ok());
    true
}

/// `floor_acquire(Key, MaxPer, Buckets)`: `{acquired, N}`, or `full` at capacity.
unsafe extern "C" fn floor_acquire(
    raw_env: *mut ErlNifEnv,
    _argc: c_int,
    argv: *const ErlNifTerm,
) -> ErlNifTerm {
    // SAFETY: the VM passes its environment, valid during this call, and three arguments as registered.
    let (env, limits) = unsafe { decode(&raw_env, argv) };
    let Some((max_per, buckets)) = limits else {
        // SAFETY: `raw_env` is the environment of this call, and the term is returned immediately.
        return unsafe { enif_make_badarg(raw_env) };
    };
    let capacity = max_per.saturating_mul(buckets);
    let mut out = PERMITS.0.load(Ordering::Relaxed);
    while out < capacity {
        match PERMITS
            .0
            .compare_exchange_weak(out, out + 1, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => {
                let answer = [
                    atoms::acquired().as_c_arg(),
                    (out + 1).encode(env).as_c_arg(),
                ];
                // SAFETY: `answer` contains an atom and a term of this environment.
                return unsafe { enif_make_tuple_from_array(raw_env, answer.as_ptr(), 2) };
            }
            Err(seen) => out = seen,
        }
    }
    atoms::full().as_c_arg()
}

/// `floor_release(Key, MaxPer, Buckets)`: `ok`. It does not check for 0, because callers call it after `floor_acquire`.
unsafe extern "C" fn floor_release(
    raw_env: *mut ErlNifEnv,
    _argc: c_int,
    argv: *const ErlNifTerm,
) -> ErlNifTerm {
    // SAFETY: as in `floor_acquire`.
    let (_, limits) = unsafe { decode(&raw_env, argv) };
    if limits.is_none() {
        // SAFETY: as in `floor_acquire`.
        return unsafe { enif_make_badarg(raw_env) };
    }
    PERMITS.0.fetch_sub(1, Ordering::Release);
    ok().as_c_arg()
}

/// The environment, and `MaxPer` and `Buckets`, or `None` if one of them is not an integer of 64 bits.
///
/// # Safety
/// `raw_env` must be the environment of the running NIF call and `argv` its three arguments.
#[inline]
unsafe fn decode(
    raw_env: &*mut ErlNifEnv,
    argv: *const ErlNifTerm,
) -> (Env<'_>, Option<(u64, u64)>) {
    // SAFETY: the caller guarantees `raw_env`. The borrow limits the lifetime of the environment and its terms.
    let env = unsafe { Env::new(raw_env, *raw_env) };
    // SAFETY: the caller guarantees three readable terms of this environment.
    let integer = |i| unsafe { Term::new(env, *argv.add(i)) }.decode::<u64>().ok();
    (env, integer(1).zip(integer(2)))
}
