//! The NIFs: arguments in, one call of the table, an answer out.

use crate::enif;
use crate::incarnation::{self, current, Caller, ManagerWatch, Trouble};
use crate::key::TermKey;
use crate::large::Large;
use crate::small::Small;
use permit_table::{
    bucket_view, pin, Acquired, Capacity, NotHeld, OutOfMemory, Progress, Query, Usage,
};
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
    fn raise(self, env: Env<'_>) -> ErlNifTerm {
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
                let lifetime = ();
                // SAFETY: the VM calls with the environment of the calling process, valid during the call, and
                // with as many arguments as the function was registered for.
                let (env, arguments) = unsafe {
                    let env = Env::new(&lifetime, env);
                    let arguments = &*arguments.cast::<[ErlNifTerm; $arity]>();
                    (env, arguments.map(|argument| Term::new(env, argument)))
                };
                catch_unwind(AssertUnwindSafe(|| $body(env, arguments)))
                    .unwrap_or_else(|_| Raised::Panicked.raise(env))
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

/// What to do with a key, whatever kind it is of: the two kinds are compiled apart, so that the small one pays for nothing.
trait WithKey {
    type Answer;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Self::Answer;
}

#[inline(always)]
fn with_key<W: WithKey>(key: Term<'_>, with: W) -> Result<W::Answer, OutOfMemory> {
    let mut small = Small::default();
    if small.parse(key) {
        Ok(with.call(&small))
    } else {
        with_large_key(key, with)
    }
}

#[cold]
fn with_large_key<W: WithKey>(key: Term<'_>, with: W) -> Result<W::Answer, OutOfMemory> {
    Ok(with.call(&Large::parse(key)?))
}

// The hot calls answer with a term at every turn, instead of with a result that is looked into at the end: a result that is written
// as bytes and read back as a word stalls the processor for longer than the rest of a call takes (18 ns of a pair, measured).

raw_nif!("acquire", 3, acquire);

/// `acquire(Key, MaxPer, Buckets) -> {acquired, N} | full`
#[inline(always)]
fn acquire<'a>(env: Env<'a>, [key, max_per, buckets]: [Term<'a>; 3]) -> ErlNifTerm {
    let Some(capacity) = capacity(max_per, buckets) else {
        return Raised::BadArg.raise(env);
    };
    with_key(key, Acquire { env, capacity }).unwrap_or_else(|error| Raised::from(error).raise(env))
}

struct Acquire<'a> {
    env: Env<'a>,
    capacity: Capacity,
}

impl WithKey for Acquire<'_> {
    type Answer = ErlNifTerm;

    #[inline(always)]
    fn call<Q: Query<TermKey>>(self, key: &Q) -> ErlNifTerm {
        let env = self.env;
        let pin = pin();
        let Some(open) = current(&pin) else {
            return Raised::BadArg.raise(env);
        };
        let caller = Caller::of(env);
        let watch = || open.watch_caller(env, caller.place);
        match open
            .table
            .acquire(&pin, caller.holder(), key, self.capacity, watch)
        {
            Ok(Acquired::Permit(out)) => enif::tagged(env, atoms::acquired(), out),
            Ok(Acquired::Full) => atoms::full().as_c_arg(),
            Err(trouble) => Raised::Trouble(trouble).raise(env),
        }
    }
}

raw_nif!("release", 3, release);

/// `release(Key, MaxPer, Buckets) -> ok | {error, not_held}`
#[inline(always)]
fn release<'a>(env: Env<'a>, [key, max_per, buckets]: [Term<'a>; 3]) -> ErlNifTerm {
    match capacity(max_per, buckets) {
        Some(_) => release_strictly(env, [key]),
        None => Raised::BadArg.raise(env),
    }
}

raw_nif!("release", 1, release_strictly);

/// `release(Key) -> ok | {error, not_held}`
#[inline(always)]
fn release_strictly<'a>(env: Env<'a>, [key]: [Term<'a>; 1]) -> ErlNifTerm {
    with_key(key, Release { env }).unwrap_or_else(|error| Raised::from(error).raise(env))
}

struct Release<'a> {
    env: Env<'a>,
}

impl WithKey for Release<'_> {
    type Answer = ErlNifTerm;

    #[inline(always)]
    fn call<Q: Query<TermKey>>(self, key: &Q) -> ErlNifTerm {
        let env = self.env;
        let pin = pin();
        let Some(open) = current(&pin) else {
            return Raised::BadArg.raise(env);
        };
        match open.table.release(&pin, Caller::of(env).holder(), key) {
            Ok(()) => atoms::ok().as_c_arg(),
            Err(NotHeld) => env.error_tuple(atoms::not_held()).as_c_arg(),
        }
    }
}

/// `MaxPer * Buckets` of two non-negative integers of any size.
#[inline(always)]
fn capacity(max_per: Term<'_>, buckets: Term<'_>) -> Option<Capacity> {
    Some(Capacity::of(non_negative(max_per)?, non_negative(buckets)?))
}

#[inline(always)]
fn non_negative(term: Term<'_>) -> Option<u64> {
    match term.decode::<u64>() {
        Ok(integer) => Some(integer),
        Err(_) => beyond_64_bits(term),
    }
}

#[cold]
fn beyond_64_bits(term: Term<'_>) -> Option<u64> {
    (term.is_integer() && enif::is_positive(term)).then_some(u64::MAX)
}

struct Count;

impl WithKey for Count {
    type Answer = Result<u64, Raised>;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Self::Answer {
        let pin = pin();
        let open = current(&pin).ok_or(Raised::BadArg)?;
        Ok(open.table.count(&pin, key))
    }
}

fn count_of(key: Term) -> Result<u64, Raised> {
    with_key(key, Count)?
}

/// `count(Key)`: permits out.
#[rustler::nif]
fn count(key: Term) -> NifResult<u64> {
    Ok(count_of(key)?)
}

/// `buckets(Key, MaxPer) -> {Full, Rest}`: full buckets, and permits in the next one.
#[rustler::nif]
fn buckets(key: Term, max_per: Term) -> NifResult<(u64, u64)> {
    let max_per = non_negative(max_per)
        .filter(|max_per| *max_per > 0)
        .ok_or(Error::BadArg)?;
    Ok(bucket_view(count_of(key)?, max_per))
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

/// `sweep_step(Handle, Budget) -> more | waiting | done`
#[rustler::nif]
fn sweep_step(handle: ResourceArc<ManagerWatch>, budget: usize) -> Atom {
    match handle.sweep_step(budget) {
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
