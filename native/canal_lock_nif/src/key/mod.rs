//! Keys: any Erlang term, compared by `=:=`.
//!
//! A key has these forms:
//!
//! | form | what it is | owner |
//! |---|---|---|
//! | **argument** [`ErlNifTerm`] | the term that the caller passes: a key or a handle | the VM, during the call |
//! | **whole term** [`WholeTerm`] | an argument that is compared with copies, without an encoding | the call |
//! | **encoded term** [`EncodedTerm`] | the words of a key, or the address of an interned key | the call, on its stack |
//! | **encoded key** `EncodedKey`, small | at most five words, inline | a stored or interned key |
//! | **encoded key** `EncodedKey`, large | words on the heap, a copy of an opaque term | a stored or interned key |
//! | **interned key** `Interned` | the one encoded key of all equal long keys | shared by handles and stored keys |
//! | **handle** [`Handle`] | an Erlang reference to an interned key | the caller, until `forget/1` |
//! | **stored key** [`StoredKey`] | an encoded key, or the address of an interned key | a table, or a proxy's record |
//!
//! | from | to | by | for |
//! |---|---|---|---|
//! | argument | encoded term | [`with_optimistic_encoding`] | the first attempt of a hot call |
//! | argument | encoded term | [`with_verified_encoding`] | all other calls |
//! | argument | whole term | [`with_optimistic_encoding`] | a release of an opaque term, such as a reference |
//! | argument | handle, interned key | [`Handle::of`] | `intern/1` |
//! | handle | encoded term | [`Handle::with_encoding`] | a call with a long key |
//! | encoded term | encoded key | `EncodedKey::of` | a new stored or interned key |
//! | encoded term | stored key | `Query::to_key` | a key that is new in a table |
//! | stored key | term | [`decode::term`] | calls that return keys |
//!
//! An *opaque* term contains a reference, a fun or a native record (OTP 29): its words do not determine it, so the VM
//! compares the copy. The words of a key and its form depend only on its value (`encoding.rs`), so equal terms become
//! equal keys.
//! `reader.rs` and `walk.rs` read a term into words; `inline_vec.rs` keeps the words of a short key on the stack.

pub(crate) mod decode;
mod encoded_key;
mod encoding;
mod inline_vec;
pub(crate) mod interned;
mod optimistic;
mod reader;
mod walk;

pub(crate) use encoded_key::EncodedTerm;
pub(crate) use interned::{Handle, StoredKey};
pub(crate) use optimistic::{with_optimistic_encoding, OptimisticCall, WholeTerm};
pub(crate) use reader::ReadMode;
pub(crate) use walk::with_verified_encoding;

#[cfg(doc)]
use crate::enif::ErlNifTerm;
