//! The border between the BEAM and `permit_table`: terms, resources, the death watch. No logic.
//!
//! | room | what it does |
//! |---|---|
//! | `calls.rs` | the NIFs that count: acquire and release |
//! | `inspect.rs` | the NIFs that look: what is out, who holds it |
//! | `lifecycle.rs` | the NIFs of the manager |
//! | `arguments.rs` | what comes in: keys and numbers |
//! | `error.rs` | what goes wrong |
//! | `incarnation.rs` | tables opened, kept and closed, the watch on the manager and on the holders |
//! | `caller.rs` | a process, as the table knows it |
//! | `proxies.rs` | holders on other nodes, and the local processes that represent them |
//! | `key.rs` | what is stored as a key: any term, by `=:=`; and all forms that a key has |
//! | `key/encoding.rs` | the words that a term is encoded as |
//! | `key/read.rs` | from a term to these |
//! | `key/decode.rs` | and back |
//! | `key/interned.rs` | keys that take long to read |
//! | `faults.rs` | what goes wrong because a test says so; never in a library that is shipped |
//! | `enif.rs` | the few functions of `erl_nif` that rustler does not wrap as we need them |
//!
//! Only `acquire` and `release` are raw NIF functions: what `#[rustler::nif]` generates allocates a list of the
//! arguments at each call, which costs more than the rest of them together. All NIFs but those that only look, or read
//! long keys, or free what nobody can find any more, run on normal schedulers, because a process that is killed inside
//! a dirty NIF is announced dead while the NIF runs on: counts, records and monitors of an open table must not be
//! touched then.
//!
//! # Without memory (P9)
//!
//! What callers make grow is reserved fallibly, and a failure is an error of the call: keys, records, the table, the
//! stacks of walks, lists to be told. What is left ends the node when there is no memory for it, as the VM itself
//! does:
//!
//! - what the VM makes for us: terms, their copies (`enif_make_*`, `enif_alloc_env`) and resources, a thousand for a
//!   table, for which it never answers null;
//! - what is allocated once and for ever: by this library when it is loaded, by a thread that calls it for the first
//!   time (its epoch record, its place to wait for a lock in), by the first hasher (its seeds);
//! - what is of a fixed size and freed right away: the list of arguments that `#[rustler::nif]` makes for each call
//!   (five words at most), the two of `info/0`;
//! - two `Arc`s for a manager that begins and one for a long key, some hundred bytes: there is no fallible way to make
//!   one yet.
//!
//! What is pushed, inserted or moved elsewhere has had its room reserved before.

mod arguments;
mod caller;
mod calls;
mod enif;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod incarnation;
mod inspect;
mod key;
mod lifecycle;
mod proxies;

fn load(env: rustler::Env<'_>, _: rustler::Term<'_>) -> bool {
    // The first pin of an operating system process takes some milliseconds: the kernel waits for all processors when it
    // registers the process for `membarrier(2)`. No acquire should have to.
    drop(permit_table::pin());
    enif::learn_words(env);
    inspect::make_atoms(env);
    true
}

rustler::init!("canal_lock_nif", load = load);

// On those two a library cannot be linked against functions of the VM.
#[cfg(not(any(target_os = "macos", windows)))]
#[global_allocator]
static ALLOCATOR: vm_allocator::VmAllocator = vm_allocator::VmAllocator;
