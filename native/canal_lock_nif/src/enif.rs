//! The few functions of `erl_nif` that rustler does not wrap, or wraps at a cost that a hot call cannot bear.
//!
//! `Env` and `Term` are rustler's, whose lifetimes say how long a term may be used: all blocks here rest on that. The
//! hot calls use [`Here`] instead.

use rustler::sys::{
    enif_compare, enif_get_int64, enif_get_list_cell, enif_get_local_port, enif_get_tuple,
    enif_get_uint64, enif_hash, enif_inspect_binary, enif_is_atom, enif_is_identical,
    enif_is_number, enif_is_pid, enif_make_copy, enif_make_double, enif_make_int, enif_make_int64,
    enif_make_list_cell, enif_make_list_from_array, enif_make_new_binary, enif_make_pid,
    enif_make_ref, enif_make_tuple_from_array, enif_make_uint64, enif_self, enif_term_to_binary,
    ErlNifBinary, ErlNifEnv, ErlNifHash, ErlNifPid, ErlNifPort, ErlNifTerm,
};
use rustler::{Atom, Env, Term};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ptr;

/// The environment of the running call, and nothing beside it.
///
/// rustler's `Env` carries a byte that says of what kind it is. A structure with a byte in it that has just been
/// written is read back by words when it is moved, for which the processor waits 3 ns: a tenth of a call.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    env: *mut ErlNifEnv,
    call: PhantomData<&'a ()>,
}

impl<'a> Here<'a> {
    /// # Safety
    /// `env` is the environment that a NIF has been called with by a process, and `'a` is not longer than that call.
    #[inline(always)]
    pub(crate) unsafe fn new(env: *mut ErlNifEnv) -> Self {
        Self {
            env,
            call: PhantomData,
        }
    }

    /// From rustler's type, in a NIF that a process has called.
    pub(crate) fn from_env(env: Env<'a>) -> Self {
        Self {
            env: env.as_c_arg(),
            call: PhantomData,
        }
    }

    /// As rustler's type.
    #[inline(always)]
    pub(crate) fn env(self) -> Env<'a> {
        // SAFETY: valid during 'a, says `new`.
        unsafe { Env::new(&(), self.env) }
    }

    /// A term of this environment, as rustler's type.
    #[inline(always)]
    pub(crate) fn term(self, term: ErlNifTerm) -> Term<'a> {
        // SAFETY: callers have it from the VM, in this call.
        unsafe { Term::new(self.env(), term) }
    }
}

/// The machine word that a term is. For an atom or a local pid it is the whole of it: equal if and only if the terms
/// are.
#[inline(always)]
pub(crate) fn word(term: ErlNifTerm) -> u64 {
    // SAFETY: ErlNifTerm is a transparent wrapper around the C type ERL_NIF_TERM, which is a word.
    let word: usize = unsafe { std::mem::transmute(term) };
    word as u64
}

/// The term that a machine word is.
///
/// # Safety
/// The word is of a term that is alive: of an immediate one, or of one whose environment the caller keeps.
pub(crate) unsafe fn from_word(word: u64) -> ErlNifTerm {
    // SAFETY: the inverse of `word`.
    unsafe { std::mem::transmute::<usize, ErlNifTerm>(word as usize) }
}

/// The word of a local pid, which no other living process has.
#[inline(always)]
pub(crate) fn pid_word(pid: &ErlNifPid) -> NonZeroU64 {
    // SAFETY: the function reads the structure that the VM has filled, and no environment.
    let term = unsafe { enif_make_pid(ptr::null_mut(), *pid) };
    NonZeroU64::new(word(term)).expect("a pid is not the zero word")
}

/// The pid of the calling process.
#[inline(always)]
pub(crate) fn self_pid(here: Here<'_>) -> ErlNifPid {
    let mut pid = MaybeUninit::uninit();
    // SAFETY: the environment is that of a process: then it fills `pid`.
    unsafe {
        enif_self(here.env, pid.as_mut_ptr());
        pid.assume_init()
    }
}

/// Is it an atom?
#[inline(always)]
pub(crate) fn is_atom(here: Here<'_>, term: ErlNifTerm) -> bool {
    // SAFETY: the term is of this environment.
    unsafe { enif_is_atom(here.env, term) != 0 }
}

/// Is it an integer or a float?
#[inline(always)]
pub(crate) fn is_number(here: Here<'_>, term: ErlNifTerm) -> bool {
    // SAFETY: the term is of this environment.
    unsafe { enif_is_number(here.env, term) != 0 }
}

/// Is it a pid, of whatever node?
#[inline(always)]
pub(crate) fn is_pid(here: Here<'_>, term: ErlNifTerm) -> bool {
    // SAFETY: the term is of this environment.
    unsafe { enif_is_pid(here.env, term) != 0 }
}

/// An integer of 64 bits without sign.
#[inline(always)]
pub(crate) fn unsigned(here: Here<'_>, term: ErlNifTerm) -> Option<u64> {
    let mut integer = 0;
    // SAFETY: the pointer is to a local, and the term is of this environment.
    let fits = unsafe { enif_get_uint64(here.env, term, &mut integer) };
    (fits != 0).then_some(integer)
}

/// An integer of 64 bits with sign.
#[inline(always)]
pub(crate) fn signed(term: Term<'_>) -> Option<i64> {
    let mut integer = 0;
    // SAFETY: as in `unsigned`.
    let fits = unsafe { enif_get_int64(term.get_env().as_c_arg(), term.as_c_arg(), &mut integer) };
    (fits != 0).then_some(integer)
}

/// An integer as a term.
pub(crate) fn integer(env: Env<'_>, integer: i64) -> ErlNifTerm {
    // SAFETY: the environment is that of the running call.
    unsafe { enif_make_int64(env.as_c_arg(), integer) }
}

/// A float as a term. What is read from a float is finite, so it can be one again.
pub(crate) fn float(here: Here<'_>, float: f64) -> ErlNifTerm {
    // SAFETY: the environment is that of the running call.
    unsafe { enif_make_double(here.env, float) }
}

/// `[]`.
pub(crate) fn nil(here: Here<'_>) -> ErlNifTerm {
    // SAFETY: as in `float`; of no elements, none are read.
    unsafe { enif_make_list_from_array(here.env, ptr::null(), 0) }
}

/// A tuple of terms of this environment.
pub(crate) fn tuple(here: Here<'_>, elements: &[ErlNifTerm]) -> ErlNifTerm {
    // SAFETY: the array is as long as it says. A tuple that was one before is not too long to be one again.
    unsafe { enif_make_tuple_from_array(here.env, elements.as_ptr(), elements.len() as u32) }
}

/// A list of terms of this environment with such a tail.
pub(crate) fn list(here: Here<'_>, elements: &[ErlNifTerm], tail: ErlNifTerm) -> ErlNifTerm {
    elements.iter().rev().fold(tail, |tail, head| {
        // SAFETY: both terms are of this environment.
        unsafe { enif_make_list_cell(here.env, *head, tail) }
    })
}

/// A binary of `size` bytes, which are taken from as many words as hold them.
pub(crate) fn binary(
    here: Here<'_>,
    size: usize,
    words: &mut impl Iterator<Item = u64>,
) -> ErlNifTerm {
    let mut term = ErlNifTerm::default();
    let bytes = if size == 0 {
        // SAFETY: as in `float`.
        unsafe { enif_make_new_binary(here.env, 0, &mut term) };
        return term;
    } else {
        // SAFETY: the VM answers with room for as many bytes (or ends the node), which nobody else knows yet.
        unsafe {
            std::slice::from_raw_parts_mut(enif_make_new_binary(here.env, size, &mut term), size)
        }
    };
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
    term
}

/// A copy of a term of another environment, which the caller keeps alive.
pub(crate) fn copied(here: Here<'_>, term: ErlNifTerm) -> ErlNifTerm {
    // SAFETY: the environment is that of the running call; it only reads the term.
    unsafe { enif_make_copy(here.env, term) }
}

/// The elements of a tuple.
#[inline(always)]
pub(crate) fn elements<'a>(here: Here<'a>, term: ErlNifTerm) -> Option<&'a [ErlNifTerm]> {
    let (mut arity, mut first) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the pointers are to locals, and the term is of this environment; both are filled on success.
    let (arity, first) = unsafe {
        if enif_get_tuple(here.env, term, arity.as_mut_ptr(), first.as_mut_ptr()) == 0 {
            return None;
        }
        (arity.assume_init(), first.assume_init())
    };
    if arity == 0 {
        return Some(&[]);
    }
    // SAFETY: the VM says that `arity` elements stand there, and terms do not move while a NIF runs.
    Some(unsafe { std::slice::from_raw_parts(first, arity as usize) })
}

/// The bytes of a binary; nothing for a bitstring of other than whole bytes.
#[inline(always)]
pub(crate) fn bytes<'a>(here: Here<'a>, term: ErlNifTerm) -> Option<&'a [u8]> {
    let mut binary = MaybeUninit::<ErlNifBinary>::uninit();
    // SAFETY: the pointer is to a local, and the term is of this environment; it is filled on success.
    let binary = unsafe {
        if enif_inspect_binary(here.env, term, binary.as_mut_ptr()) == 0 {
            return None;
        }
        binary.assume_init_ref()
    };
    if binary.size == 0 {
        return Some(&[]);
    }
    // SAFETY: the VM says that `size` bytes stand there, as long as the call lasts.
    Some(unsafe { std::slice::from_raw_parts(binary.data, binary.size) })
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

/// Is an integer of no more than 128 bytes? To ask takes the same time for any.
pub(crate) fn is_short_integer(integer: Term<'_>) -> bool {
    const BYTES: usize = 128;
    // In the external format: a big integer of BYTES + 1 digits of a byte each, a sign, and the digits, least first.
    let mut bound = [0; 4 + BYTES + 1];
    bound[..3].copy_from_slice(&[131, 110, BYTES as u8 + 1]);
    bound[4 + BYTES] = 1;
    let mut is_beyond = |sign: u8, beyond: fn(i32) -> bool| {
        bound[3] = sign;
        let Some((bound, _)) = integer.get_env().binary_to_term(&bound) else {
            return true;
        };
        // SAFETY: both terms are of this environment.
        beyond(unsafe { enif_compare(integer.as_c_arg(), bound.as_c_arg()) })
    };
    !is_beyond(0, |order| order >= 0) && !is_beyond(1, |order| order <= 0)
}

/// A reference that nobody has.
pub(crate) fn make_reference(here: Here<'_>) -> Term<'_> {
    // SAFETY: the environment is that of the running call.
    here.term(unsafe { enif_make_ref(here.env) })
}

/// The word of a local port, which is the whole of it, as that of a local pid is.
pub(crate) fn local_port_word(port: Term<'_>) -> Option<u64> {
    let mut local = MaybeUninit::<ErlNifPort>::uninit();
    // SAFETY: the pointer is to a local, and the term is of this environment.
    let is_local = unsafe {
        enif_get_local_port(
            port.get_env().as_c_arg(),
            port.as_c_arg(),
            local.as_mut_ptr(),
        )
    };
    (is_local != 0).then(|| word(port.as_c_arg()))
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
pub(crate) fn tagged(here: Here<'_>, tag: Atom, number: u64) -> ErlNifTerm {
    // SAFETY: the array is read before the call returns, and both terms are of this environment.
    unsafe {
        let elements = [tag.as_c_arg(), enif_make_uint64(here.env, number)];
        enif_make_tuple_from_array(here.env, elements.as_ptr(), 2)
    }
}
