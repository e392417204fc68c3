//! The few functions of `erl_nif` that rustler does not wrap, or wraps at a cost that a hot call cannot bear.
//!
//! `Env` and `Term` are rustler's, whose lifetimes say how long a term may be used: all blocks here rest on that.

use rustler::sys::{
    enif_compare, enif_get_list_cell, enif_get_tuple, enif_hash, enif_is_identical, enif_make_int,
    enif_make_pid, enif_make_tuple_from_array, enif_make_uint64, enif_self, enif_term_to_binary,
    ErlNifBinary, ErlNifHash, ErlNifPid, ErlNifTerm,
};
use rustler::{Atom, Env, LocalPid, Term};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;

/// The machine word that a term is. For an atom or a local pid it is the whole of it: equal if and only if the terms are.
#[inline(always)]
pub(crate) fn word(term: ErlNifTerm) -> u64 {
    // SAFETY: ErlNifTerm is a transparent wrapper around the C type ERL_NIF_TERM, which is a word.
    let word: usize = unsafe { std::mem::transmute(term) };
    word as u64
}

/// The word of a local pid, which no other living process has.
#[inline(always)]
pub(crate) fn pid_word(env: Env<'_>, pid: &ErlNifPid) -> NonZeroU64 {
    // SAFETY: the function reads the structure that rustler has filled.
    let term = unsafe { enif_make_pid(env.as_c_arg(), *pid) };
    NonZeroU64::new(word(term)).expect("a pid is not the zero word")
}

/// The pid of the calling process.
#[inline(always)]
pub(crate) fn self_pid(env: Env<'_>) -> ErlNifPid {
    let mut pid = MaybeUninit::uninit();
    // SAFETY: called in NIFs only, whose environment is that of a process: then it fills `pid`.
    unsafe {
        enif_self(env.as_c_arg(), pid.as_mut_ptr());
        pid.assume_init()
    }
}

/// The calling process, as rustler's type.
pub(crate) fn self_local_pid(env: Env<'_>) -> LocalPid {
    LocalPid::from_c_arg(self_pid(env))
}

/// The elements of a tuple.
#[inline(always)]
pub(crate) fn tuple<'a>(term: Term<'a>) -> Option<&'a [ErlNifTerm]> {
    let mut arity = 0;
    let mut first = std::ptr::null();
    // SAFETY: the pointers are to locals, and the term is of this environment.
    let is_tuple = unsafe {
        enif_get_tuple(
            term.get_env().as_c_arg(),
            term.as_c_arg(),
            &mut arity,
            &mut first,
        )
    };
    if is_tuple == 0 {
        return None;
    }
    if arity == 0 {
        return Some(&[]);
    }
    // SAFETY: the VM says that `arity` elements stand there, and terms do not move while a NIF runs.
    Some(unsafe { std::slice::from_raw_parts(first, arity as usize) })
}

/// An element of `parent` as a term.
#[inline(always)]
pub(crate) fn element<'a>(parent: Term<'a>, element: ErlNifTerm) -> Term<'a> {
    // SAFETY: what a term of an environment contains is of that environment too.
    unsafe { Term::new(parent.get_env(), element) }
}

/// The head and the tail of a list cell; nothing for what is not one.
pub(crate) fn list_cell<'a>(term: Term<'a>) -> Option<(Term<'a>, Term<'a>)> {
    let (mut head, mut tail) = (ErlNifTerm::default(), ErlNifTerm::default());
    // SAFETY: the pointers are to locals, and the term is of this environment.
    let is_cell = unsafe {
        enif_get_list_cell(
            term.get_env().as_c_arg(),
            term.as_c_arg(),
            &mut head,
            &mut tail,
        )
    };
    (is_cell != 0).then(|| (element(term, head), element(term, tail)))
}

/// Are the two `=:=`? Both have to be alive, whatever environments they are of.
pub(crate) fn identical(left: ErlNifTerm, right: ErlNifTerm) -> bool {
    // SAFETY: it reads the two terms, which the caller keeps alive.
    unsafe { enif_is_identical(left, right) != 0 }
}

/// Is an integer greater than 0?
pub(crate) fn is_positive(integer: Term<'_>) -> bool {
    // SAFETY: both terms are of this environment.
    unsafe {
        let zero = enif_make_int(integer.get_env().as_c_arg(), 0);
        enif_compare(integer.as_c_arg(), zero) > 0
    }
}

/// A hash of the VM's own: equal for terms that are `=:=`.
pub(crate) fn internal_hash(term: Term<'_>) -> u64 {
    // SAFETY: it reads the term.
    unsafe { enif_hash(ErlNifHash::ERL_NIF_INTERNAL_HASH, term.as_c_arg(), 0) }
}

/// Calls `with` with the term in the external format.
pub(crate) fn with_external_format<T>(term: Term<'_>, with: impl FnOnce(&[u8]) -> T) -> Option<T> {
    /// An owned binary: released however the scope is left.
    struct Released(ErlNifBinary);
    impl Drop for Released {
        fn drop(&mut self) {
            // SAFETY: made by `enif_term_to_binary`, never turned into a term.
            unsafe { rustler::sys::enif_release_binary(&mut self.0) }
        }
    }
    let mut binary = MaybeUninit::uninit();
    // SAFETY: the term is of this environment; on success the binary is filled and ours.
    let binary = unsafe {
        if enif_term_to_binary(
            term.get_env().as_c_arg(),
            term.as_c_arg(),
            binary.as_mut_ptr(),
        ) == 0
        {
            return None;
        }
        Released(binary.assume_init())
    };
    // SAFETY: the VM says that `size` bytes stand there; they are ours until `binary` is dropped.
    Some(with(unsafe {
        std::slice::from_raw_parts(binary.0.data, binary.0.size)
    }))
}

/// `{Tag, Number}`.
#[inline(always)]
pub(crate) fn tagged(env: Env<'_>, tag: Atom, number: u64) -> ErlNifTerm {
    // SAFETY: the array is read before the call returns, and both terms are of this environment.
    unsafe {
        let elements = [tag.as_c_arg(), enif_make_uint64(env.as_c_arg(), number)];
        enif_make_tuple_from_array(env.as_c_arg(), elements.as_ptr(), 2)
    }
}
