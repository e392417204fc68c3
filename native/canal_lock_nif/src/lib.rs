//! The border between the BEAM and `permit_table`: terms, resources and death watches. It contains no logic.
//!
//! The list of modules below says what each file is about: the native functions are in `calls.rs`, `waits.rs`,
//! `inspect.rs`, `manager.rs`, `shares.rs` and `key/handle.rs`.
//!
//! Only `acquire` and `release`, also of shared keys, are raw NIF functions: the code that `#[rustler::nif]` generates
//! allocates a list of the arguments at each call, which costs more than the rest of these calls together. Most NIFs
//! run on normal schedulers. When a process is killed inside a dirty NIF, the VM reports its death while the NIF still
//! runs. So a dirty NIF must not change the counts, records or monitors of an open table. Dirty NIFs only inspect,
//! read long keys, or free memory that no call can reach any more.
//!
//! # Without memory (P9)
//!
//! Everything that calls make grow is reserved fallibly, and a failure is an error of the call: keys, records, the
//! table, the lists of readers, the lists that calls return. The remaining allocations end the node when there is no
//! memory for them, as in the VM itself:
//!
//! - what the VM makes for the library: terms, their copies (`enif_make_*`, `enif_alloc_env`) and a thousand resources
//!   per table. The VM never returns null for these;
//! - what is allocated once and never freed: by this library when it is loaded, by a thread on its first call (its
//!   epoch record, its parking place for locks), by the first hasher (its seeds);
//! - what has a fixed size and is freed immediately: the list of arguments that `#[rustler::nif]` makes for each call
//!   (at most six words), the two lists of `info/0`, the external format of a request's reference;
//! - two `Arc`s for a new manager and one for a long key, some hundred bytes: an `Arc` cannot be allocated fallibly
//!   yet.
//!
//! Every push, insert or move has its memory reserved beforehand.

mod arguments;
mod caller;
mod calls;
mod clock;
mod enif;
mod error;
#[cfg(feature = "faults")]
mod failure_injection;
mod incarnation;
mod inspect;
mod key;
mod manager;
mod notice;
mod proxies;
mod raw_nif;
mod shares;
mod waits;

/// Makes the atoms that no Erlang module of the library mentions. The first use of an atom of a file makes all of that
/// file. If they were made later, the VM's atom table might be full, which ends the VM (P9).
fn make_atoms() {
    inspect::atoms::keys();
    key::namespace::atoms::local();
    shares::atoms::declare();
    waits::atoms::declare();
}

/// `info` is a pid, and the process limit of the VM.
fn load(env: rustler::Env<'_>, info: rustler::Term<'_>) -> bool {
    // The first pin of an operating system process takes some milliseconds, because the kernel waits for all processors
    // when it registers the process for `membarrier(2)`. This pin moves that time from the first acquire to the load.
    drop(permit_table::pin());
    enif::learn_words(env);
    make_atoms();
    info.decode()
        .is_ok_and(|(pid, process_limit)| caller::learn_numbers(pid, process_limit).is_ok())
}

rustler::init!("canal_lock_nif", load = load);

#[global_allocator]
static ALLOCATOR: vm_allocator::VmAllocator = vm_allocator::VmAllocator;
