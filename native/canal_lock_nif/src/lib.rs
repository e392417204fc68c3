//! The border between the BEAM and `permit_table`: terms, resources, the death watch. No logic.
//!
//! | room | what it does |
//! |---|---|
//! | `calls.rs` | the NIFs that count: acquire and release |
//! | `looks.rs` | the NIFs that look: what is out, who holds it |
//! | `managing.rs` | the NIFs of the manager |
//! | `arguments.rs` | what comes in: keys and numbers |
//! | `raised.rs` | what goes wrong |
//! | `incarnation.rs` | tables opened, kept and closed, the watch on the manager and on the holders |
//! | `remote.rs` | holders on other nodes |
//! | `key.rs` | what is stored as a key: any term, by `=:=` |
//! | `small.rs` | keys that fit into a cache line: parsed without allocating |
//! | `large.rs` | all other keys |
//! | `interned.rs` | keys that take long to read |
//! | `decode.rs` | a stored key as a term again |
//! | `walk.rs` | a way through a term of any depth, without recursion |
//! | `allocator.rs` | memory comes from the VM |
//! | `enif.rs` | the few functions of `erl_nif` that rustler does not wrap as we need them |
//!
//! Only `acquire` and `release` are raw NIF functions: what `#[rustler::nif]` generates allocates a list of the
//! arguments at each call, which costs more than the rest of them together. All NIFs but some that only look run on
//! normal schedulers, because a process that is killed inside a dirty NIF is announced dead while the NIF runs on:
//! counts, records and monitors must not be touched then.

// Elsewhere the VM's functions are found only after the library has begun to allocate.
#[cfg(not(any(target_os = "macos", windows)))]
mod allocator;
mod arguments;
mod calls;
mod decode;
mod enif;
mod incarnation;
mod interned;
mod key;
mod large;
mod looks;
mod managing;
mod raised;
mod remote;
mod small;
mod walk;

fn load(env: rustler::Env<'_>, _: rustler::Term<'_>) -> bool {
    looks::make_atoms(env);
    true
}

rustler::init!("canal_lock_nif", load = load);
