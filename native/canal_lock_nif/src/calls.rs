//! The NIFs: arguments in, one call of the table, an answer out.

use crate::enif::{self, Here};
use crate::incarnation::{self, current, Caller, ManagerWatch, Trouble};
use crate::key::TermKey;
use crate::large::Large;
use crate::small::{guess, Guess, Small, WithGuess};
use permit_table::{bucket_view, pin, Acquired, Capacity, NotHeld, Progress, Query, Usage};
use rustler::schedule::consume_timeslice;
use rustler::sys::{enif_make_badarg, enif_raise_exception, ErlNifEnv, ErlNifTerm};
use rustler::{Atom, Env, Error, Nif, NifMap, NifResult, ResourceArc, Term};
use std::ffi::{c_char, c_int};
use std::panic::{catch_unwind, AssertUnwindSafe};

mod atoms {
    rustler::atoms! {
        acquired, done, error, full, more, nif_panicked, not_held, not_watched, ok, system_limit, waiting
    }
}

/// Why a call raises.
enum Raised {
    /// An argument is of the wrong type, or no table is open.
    BadArg,
    Trouble(Trouble),
    /// A bug of ours. It must not reach the VM, which would die of it.
    Panicked,
}

impl<T: Into<Trouble>> From<T> for Raised {
    fn from(trouble: T) -> Self {
        Raised::Trouble(trouble.into())
    }
}

impl From<Raised> for Error {
    fn from(raised: Raised) -> Self {
        match raised.reason() {
            Some(reason) => Error::RaiseTerm(Box::new(reason)),
            None => Error::BadArg,
        }
    }
}

impl Raised {
    /// The reason of the error; none for `badarg`.
    fn reason(&self) -> Option<Atom> {
        match self {
            Raised::BadArg => None,
            Raised::Trouble(Trouble::OutOfMemory) => Some(atoms::system_limit()),
            Raised::Trouble(Trouble::NotWatched) => Some(atoms::not_watched()),
            Raised::Panicked => Some(atoms::nif_panicked()),
        }
    }

    /// Raises; what it returns is what the NIF has to return at once.
    #[cold]
    fn raise(self, here: Here<'_>) -> ErlNifTerm {
        let env = here.env();
        // SAFETY: the environment is that of the running call.
        unsafe {
            match self.reason() {
                None => enif_make_badarg(env.as_c_arg()),
                Some(reason) => enif_raise_exception(env.as_c_arg(), reason.as_c_arg()),
            }
        }
    }
}

/// Registers a raw NIF beside those of the macro.
macro_rules! raw_nif {
    ($name:literal, $arity:literal, $body:path) => {
        const _: () = {
            unsafe extern "C" fn entry(
                env: *mut ErlNifEnv,
                _arity: c_int,
                arguments: *const ErlNifTerm,
            ) -> ErlNifTerm {
                // SAFETY: the VM calls with the environment of the calling process, valid during the call.
                let here = unsafe { Here::new(env) };
                // SAFETY: it gives as many arguments as the function was registered for. They are read one by one
                // where they stand: to copy them all at once would read words that have just been written, as one.
                let arguments = unsafe { &*arguments.cast::<[ErlNifTerm; $arity]>() };
                catch_unwind(AssertUnwindSafe(|| $body(here, arguments)))
                    .unwrap_or_else(|_| Raised::Panicked.raise(here))
            }

            rustler::codegen_runtime::inventory::submit!(Nif {
                name: concat!($name, "\0").as_ptr() as *const c_char,
                arity: $arity,
                flags: 0,
                raw_func: entry,
            });
        };
    };
}

// The hot calls answer with a term at every turn, instead of with a result that is looked into at the end: a result
// that is written as bytes and read back as a word stalls the processor for longer than most of what a call does.

raw_nif!("acquire", 3, acquire);

/// `acquire(Key, MaxPer, Buckets) -> {acquired, N} | full`
#[inline(always)]
fn acquire(here: Here<'_>, &[key, max_per, buckets]: &[ErlNifTerm; 3]) -> ErlNifTerm {
    let Some(capacity) = capacity(here, max_per, buckets) else {
        return Raised::BadArg.raise(here);
    };
    match guess(here, key, Acquire { here, capacity }) {
        Some(Some(answer)) => answer,
        _ => acquire_surely(here, key, capacity),
    }
}

struct Acquire<'a> {
    here: Here<'a>,
    capacity: Capacity,
}

impl WithGuess for Acquire<'_> {
    type Answer = Option<ErlNifTerm>;

    #[inline(always)]
    fn call<const N: usize>(self, guess: &Guess<N>) -> Option<ErlNifTerm> {
        let here = self.here;
        let pin = pin();
        let open = current(&pin)?;
        let caller = Caller::of(here);
        let watch = || open.watch_caller(here, caller.place);
        match open
            .table
            .acquire_known(&pin, caller.holder(), guess, self.capacity, watch)
        {
            Ok(Some(acquired)) => Some(answer(here, acquired)),
            Ok(None) => None,
            Err(trouble) => Some(Raised::Trouble(trouble).raise(here)),
        }
    }
}

/// Acquires a key that is new, or not of the kind that is guessed.
#[cold]
fn acquire_surely(here: Here<'_>, key: ErlNifTerm, capacity: Capacity) -> ErlNifTerm {
    struct Surely<'a>(Here<'a>, Capacity);

    impl WithKey for Surely<'_> {
        type Answer = Acquired;

        fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Acquired, Raised> {
            let Surely(here, capacity) = self;
            let pin = pin();
            let open = current(&pin).ok_or(Raised::BadArg)?;
            let caller = Caller::of(here);
            let watch = || open.watch_caller(here, caller.place);
            let acquired = open
                .table
                .acquire(&pin, caller.holder(), key, capacity, watch)?;
            Ok(acquired)
        }
    }

    match with_key(here, key, Surely(here, capacity)) {
        Ok(acquired) => answer(here, acquired),
        Err(raised) => raised.raise(here),
    }
}

#[inline(always)]
fn answer(here: Here<'_>, acquired: Acquired) -> ErlNifTerm {
    match acquired {
        Acquired::Permit(out) => enif::tagged(here, atoms::acquired(), out),
        Acquired::Full => atoms::full().as_c_arg(),
    }
}

raw_nif!("release", 3, release);

/// `release(Key, MaxPer, Buckets) -> ok`
#[inline(always)]
fn release(here: Here<'_>, &[key, max_per, buckets]: &[ErlNifTerm; 3]) -> ErlNifTerm {
    if capacity(here, max_per, buckets).is_none() {
        return Raised::BadArg.raise(here);
    }
    release_by(here, key, |NotHeld| atoms::ok().as_c_arg())
}

raw_nif!("release", 1, release_strictly);

/// `release(Key) -> ok | {error, not_held}`
#[inline(always)]
fn release_strictly(here: Here<'_>, &[key]: &[ErlNifTerm; 1]) -> ErlNifTerm {
    release_by(here, key, |NotHeld| {
        here.env().error_tuple(atoms::not_held()).as_c_arg()
    })
}

#[inline(always)]
fn release_by(
    here: Here<'_>,
    key: ErlNifTerm,
    not_held: impl FnOnce(NotHeld) -> ErlNifTerm,
) -> ErlNifTerm {
    if guess(here, key, Release { here }) == Some(true) {
        return atoms::ok().as_c_arg();
    }
    match release_surely(here, key) {
        Ok(Ok(())) => atoms::ok().as_c_arg(),
        Ok(Err(none)) => not_held(none),
        Err(raised) => raised.raise(here),
    }
}

struct Release<'a> {
    here: Here<'a>,
}

impl WithGuess for Release<'_> {
    type Answer = bool;

    #[inline(always)]
    fn call<const N: usize>(self, guess: &Guess<N>) -> bool {
        let pin = pin();
        let Some(open) = current(&pin) else {
            return false;
        };
        let caller = Caller::of(self.here).holder();
        open.table.release(&pin, caller, guess).is_ok()
    }
}

/// Releases a key that is not of the kind that is guessed, or is not held.
#[cold]
fn release_surely(here: Here<'_>, key: ErlNifTerm) -> Result<Result<(), NotHeld>, Raised> {
    struct Surely<'a>(Here<'a>);

    impl WithKey for Surely<'_> {
        type Answer = Result<(), NotHeld>;

        fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Self::Answer, Raised> {
            let pin = pin();
            let open = current(&pin).ok_or(Raised::BadArg)?;
            let caller = Caller::of(self.0).holder();
            Ok(open.table.release(&pin, caller, key))
        }
    }

    with_key(here, key, Surely(here))
}

/// How much of a key is read in a hundredth of a timeslice, which is ten microseconds.
const BYTES_PER_PERCENT: usize = 16 * 1024;

/// What to do with a key that is known for sure; compiled for each kind.
trait WithKey {
    type Answer;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Self::Answer, Raised>;
}

fn with_key<W: WithKey>(here: Here<'_>, key: ErlNifTerm, with: W) -> Result<W::Answer, Raised> {
    if let Some(small) = Small::parse(here, key) {
        return with.call(&small);
    }
    let large = Large::parse(here.term(key))?;
    // The VM should know how long a call has taken, or a process that uses such keys gets more than its share.
    let percent = (large.bytes() / BYTES_PER_PERCENT).clamp(1, 100);
    consume_timeslice(here.env(), percent as i32);
    with.call(&large)
}

/// `MaxPer * Buckets` of two non-negative integers of any size.
#[inline(always)]
fn capacity(here: Here<'_>, max_per: ErlNifTerm, buckets: ErlNifTerm) -> Option<Capacity> {
    Some(Capacity::of(
        non_negative(here, max_per)?,
        non_negative(here, buckets)?,
    ))
}

#[inline(always)]
fn non_negative(here: Here<'_>, term: ErlNifTerm) -> Option<u64> {
    match enif::unsigned(here, term) {
        Some(integer) => Some(integer),
        None => beyond_64_bits(here.term(term)),
    }
}

#[cold]
fn beyond_64_bits(term: Term<'_>) -> Option<u64> {
    (term.is_integer() && enif::is_positive(term)).then_some(u64::MAX)
}

struct Count;

impl WithKey for Count {
    type Answer = u64;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<u64, Raised> {
        let pin = pin();
        let open = current(&pin).ok_or(Raised::BadArg)?;
        Ok(open.table.count(&pin, key))
    }
}

/// `count(Key)`: permits out.
#[rustler::nif]
fn count(env: Env, key: Term) -> NifResult<u64> {
    Ok(with_key(Here::from_env(env), key.as_c_arg(), Count)?)
}

/// `buckets(Key, MaxPer) -> {Full, Rest}`: full buckets, and permits in the next one.
#[rustler::nif]
fn buckets(env: Env, key: Term, max_per: Term) -> NifResult<(u64, u64)> {
    let here = Here::from_env(env);
    let max_per = non_negative(here, max_per.as_c_arg())
        .filter(|max_per| *max_per > 0)
        .ok_or(Error::BadArg)?;
    let out = with_key(here, key.as_c_arg(), Count)?;
    Ok(bucket_view(out, max_per))
}

/// `open(ProcessLimit) -> Handle`: opens an empty table that the caller manages.
#[rustler::nif]
fn open(env: Env, processes: usize) -> NifResult<ResourceArc<ManagerWatch>> {
    Ok(incarnation::open(env, processes).map_err(Raised::from)?)
}

/// `close(Handle) -> ok`
#[rustler::nif]
fn close(handle: ResourceArc<ManagerWatch>) -> Atom {
    handle.close();
    atoms::ok()
}

/// `sweep_step(Handle, Budget) -> more | waiting | done`: looks at about so many keys.
#[rustler::nif]
fn sweep_step(handle: ResourceArc<ManagerWatch>, budget: usize) -> Atom {
    progress(handle.sweep_step(budget))
}

/// `dismantle_step(Budget) -> more | waiting | done`: frees about so many keys of closed tables.
#[rustler::nif]
fn dismantle_step(budget: usize) -> Atom {
    progress(incarnation::dismantle_step(budget))
}

fn progress(progress: Progress) -> Atom {
    match progress {
        Progress::More => atoms::more(),
        Progress::Waiting => atoms::waiting(),
        Progress::Done => atoms::done(),
    }
}

#[derive(NifMap)]
struct UsageMap {
    keys: usize,
    permits: u64,
    holders: usize,
    memory: usize,
}

/// `usage() -> #{keys, permits, holders, memory}`. Dirty, for it walks over everything; it changes nothing.
#[rustler::nif(schedule = "DirtyCpu")]
fn usage() -> NifResult<UsageMap> {
    let open = incarnation::current_kept().ok_or(Error::BadArg)?;
    let Usage {
        keys,
        permits,
        holders,
        memory,
    } = open.table.usage();
    Ok(UsageMap {
        keys,
        permits,
        holders,
        memory,
    })
}
