//! Keys: any Erlang term, compared by `=:=`.
//!
//! A key has these forms:
//!
//! | form | what it is | owner |
//! |---|---|---|
//! | **argument** `ErlNifTerm` | the term that the caller passes: a key or a handle | the VM, during the call |
//! | **whole term** [`WholeTerm`] | an argument that is compared with copies, without an encoding | the call |
//! | **encoded term** [`EncodedTerm`] | words of a term, or the address of an interned key | the call, on its stack |
//! | **stored key** [`StoredKey`], small | at most five words, inline | a table, or a proxy's record |
//! | **stored key**, large: `LargeKey` | words on the heap, a copy of an opaque term | as above, or an interned key |
//! | **interned key** `Interned` | the one large key of all equal long keys | shared by handles and stored keys |
//! | **handle** `Handle` | an Erlang reference to an interned key | the caller, until `forget/1` |
//!
//! | from | to | by | for |
//! |---|---|---|---|
//! | argument | encoded term | [`with_optimistic_encoding`] | the first attempt of a hot call |
//! | argument | encoded term | [`with_key`] | all other calls |
//! | argument | whole term | [`with_optimistic_encoding`] | a release of an opaque term, such as a reference |
//! | encoded term | interned key, handle | `interned::intern` | `intern/1` |
//! | handle | encoded term | [`with_key`] | a call with a long key |
//! | encoded term | stored key | `Query::to_key` | a key that is new in a table |
//! | stored key | term | [`decode::term`] | calls that return keys |
//!
//! An *opaque* term contains a reference, a fun or a native record (OTP 29): its words do not determine it, so the VM
//! compares the copy. The words of a key and its form depend only on its value (`encoding.rs`), so equal terms become
//! equal keys.
//! `reader.rs` and `walk.rs` read a term into words; `inline_vec.rs` keeps the words of a short key on the stack.

pub(crate) mod decode;
mod encoded_term;
mod encoding;
mod handle;
mod inline_vec;
pub(crate) mod interned;
mod large_key;
pub(crate) mod namespace;
mod optimistic;
mod reader;
mod stored_key;
mod walk;

pub(crate) use encoded_term::EncodedTerm;
pub(crate) use handle::with_key;
pub(crate) use namespace::Namespace;
pub(crate) use optimistic::{with_optimistic_encoding, OptimisticCall, WholeTerm};
pub(crate) use stored_key::StoredKey;
