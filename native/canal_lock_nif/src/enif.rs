//! Wraps functions of `erl_nif` that rustler does not wrap, or wraps at too high a cost for a hot call.
//!
//! `Env` and `Term` are rustler's types. Their lifetimes limit how long a term may be used; all unsafe blocks here rely
//! on that. The hot calls use [`CallEnv`] instead.

use permit_table::OutOfMemory;
pub(crate) use rustler::sys::ERL_NIF_TERM as ErlNifTerm;
use rustler::sys::{
    enif_alloc_env, enif_compare, enif_free_env, enif_get_list_cell, enif_get_local_port,
    enif_get_map_size, enif_get_tuple, enif_is_identical, enif_make_copy, enif_make_list_cell,
    enif_make_list_from_array, enif_make_map_from_arrays, enif_make_pid,
    enif_make_tuple_from_array, enif_map_iterator_create, enif_map_iterator_destroy,
    enif_map_iterator_get_pair, enif_map_iterator_next, enif_monitor_process, enif_self,
    enif_term_to_binary, ErlNifEnv, ErlNifMapIteratorEntry, ErlNifPid, ErlNifPort,
};
use rustler::{Encoder, Env, LocalPid, Monitor, OwnedBinary, Resource, ResourceArc, Term};
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{ffi::c_void, iter, marker::PhantomData, num::NonZeroU64, sync::OnceLock};

/// The environment of the running call.
///
/// rustler's `Env` also contains a byte for its kind. A move copies the structure by words, and reading a word that
/// contains a byte written just before stalls the processor for 3 ns, a tenth of a call.
#[derive(Clone, Copy)]
pub(crate) struct CallEnv<'a> {
    env: *mut ErlNifEnv,
    call: PhantomData<&'a ()>,
}

impl<'a> CallEnv<'a> {
    /// # Safety
    /// `env` is valid during `'a`. Functions that need the calling process ([`self_pid`]) also require that a process
    /// has called the NIF.
    #[inline(always)]
    pub(crate) unsafe fn new(env: *mut ErlNifEnv) -> Self {
        let call = PhantomData;
        Self { env, call }
    }

    pub(crate) fn from_env(env: Env<'a>) -> Self {
        // SAFETY: rustler's lifetime limits the environment.
        unsafe { Self::new(env.as_c_arg()) }
    }

    /// The environment as rustler's type.
    #[inline(always)]
    pub(crate) fn env(self) -> Env<'a> {
        // SAFETY: valid during 'a, as `new` requires.
        unsafe { Env::new(&(), self.env) }
    }

    /// A term of this environment, as rustler's type.
    #[inline(always)]
    pub(crate) fn term(self, term: ErlNifTerm) -> Term<'a> {
        // SAFETY: callers received it from the VM, in this call.
        unsafe { Term::new(self.env(), term) }
    }
}

/// The machine word of a term. For an atom or a local pid, the words are equal if and only if the terms are.
#[inline(always)]
pub(crate) fn word(term: ErlNifTerm) -> u64 {
    term as u64
}

/// The term of a machine word.
///
/// # Safety
/// The word belongs to an immediate, or to a term whose environment the caller keeps.
pub(crate) unsafe fn from_word(word: u64) -> ErlNifTerm {
    word as ErlNifTerm
}

/// The word of a local pid. `caller.rs` explains which processes may have the same word.
#[inline(always)]
pub(crate) fn pid_word(pid: &ErlNifPid) -> NonZeroU64 {
    // SAFETY: the function reads the structure that the VM has filled. It does not use the environment.
    let term = unsafe { enif_make_pid(ptr::null_mut(), *pid) };
    NonZeroU64::new(word(term)).expect("a pid is not the zero word")
}

/// Makes the VM report the death of a process to a resource. Returns `None` if there is no such process. Unlike
/// rustler's own function, this one does not panic in callbacks.
pub(crate) fn monitor<R: Resource>(
    env: Env<'_>,
    resource: &ResourceArc<R>,
    pid: LocalPid,
) -> Option<Monitor> {
    let mut monitor = MaybeUninit::uninit();
    // SAFETY: the environment is that of the calling thread. `resource` keeps the resource alive. The pointers are to
    // locals. On success the monitor is filled.
    unsafe {
        let object = object(resource);
        let answer =
            enif_monitor_process(env.as_c_arg(), object, pid.as_c_arg(), monitor.as_mut_ptr());
        (answer == 0).then(|| Monitor::from_c_arg(monitor.assume_init()))
    }
}

/// The VM's pointer to a resource, which is private in rustler.
fn object<R: Resource>(resource: &ResourceArc<R>) -> *mut c_void {
    const { assert!(size_of::<ResourceArc<R>>() == size_of::<[usize; 2]>()) };
    // SAFETY: Cargo.toml pins rustler to a version whose `ResourceArc` is two pointers: to the memory that the VM has
    // allocated, and to the value, which rustler places at a greater address in that memory.
    let [one, other]: [*mut c_void; 2] = unsafe { mem::transmute_copy(resource) };
    one.min(other)
}

/// The pid of the calling process.
#[inline(always)]
pub(crate) fn self_pid(call: CallEnv<'_>) -> ErlNifPid {
    let mut pid = MaybeUninit::uninit();
    // SAFETY: the environment belongs to a process, so the function fills `pid`.
    unsafe {
        enif_self(call.env, pid.as_mut_ptr());
        pid.assume_init()
    }
}

/// `[]`.
#[inline(always)]
pub(crate) fn nil() -> ErlNifTerm {
    NIL.load(Ordering::Relaxed) as ErlNifTerm
}

static NIL: AtomicU64 = AtomicU64::new(0);

/// An integer from 0 to 255, by its word alone. [`learn_words`] asks the VM for these words at load.
#[inline(always)]
pub(crate) fn byte(word: u64) -> Option<u64> {
    // If the distance is not a multiple of the step, the rotation moves some of its lowest bits to the top,
    // and the result is not below 256.
    let above_zero = word.wrapping_sub(ZERO.load(Ordering::Relaxed));
    let integer = above_zero.rotate_right(STEP.trailing_zeros());
    (integer < KNOWN.load(Ordering::Relaxed)).then_some(integer)
}

/// The inverse of [`byte`].
#[inline(always)]
pub(crate) fn byte_word(integer: u64) -> Option<u64> {
    let word = ZERO.load(Ordering::Relaxed) + integer.wrapping_mul(STEP);
    (integer < KNOWN.load(Ordering::Relaxed)).then_some(word)
}

/// The distance between the words of two consecutive small integers.
const STEP: u64 = 16;

/// The word of 0, and how many integers from 0 on have words at this distance: 256, or 0 on a VM with other words.
static ZERO: AtomicU64 = AtomicU64::new(0);
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// Asks the VM for words that stay the same as long as it runs. To be called first.
pub(crate) fn learn_words(env: Env<'_>) {
    let nil = Term::list_new_empty(env).as_c_arg();
    NIL.store(word(nil), Ordering::Relaxed);
    let word_of = |integer: u64| word(integer.encode(env).as_c_arg());
    let zero = word_of(0);
    if (0..256).all(|integer| word_of(integer) == zero + integer * STEP) {
        ZERO.store(zero, Ordering::Relaxed);
        KNOWN.store(256, Ordering::Relaxed);
    }
    ARE_LISTS_TAGGED.store(are_lists_tagged(CallEnv::from_env(env)), Ordering::Relaxed);
}

/// A tuple of terms of this environment.
#[inline(always)]
pub(crate) fn tuple(call: CallEnv<'_>, elements: &[ErlNifTerm]) -> ErlNifTerm {
    // SAFETY: the array has this length, which fits `u32`: it is the arity of an existing tuple, or a constant.
    unsafe { enif_make_tuple_from_array(call.env, elements.as_ptr(), elements.len() as u32) }
}

/// A list of few terms of this environment.
pub(crate) fn short_list(call: CallEnv<'_>, elements: &[ErlNifTerm]) -> ErlNifTerm {
    // SAFETY: the array has this length, which fits `u32`: it is the number of arguments of a function.
    unsafe { enif_make_list_from_array(call.env, elements.as_ptr(), elements.len() as u32) }
}

/// A list of terms of this environment, with a tail.
pub(crate) fn list(
    call: CallEnv<'_>,
    elements: impl DoubleEndedIterator<Item = ErlNifTerm>,
    tail: ErlNifTerm,
) -> ErlNifTerm {
    elements.rfold(tail, |tail, head| {
        // SAFETY: both terms are of this environment.
        unsafe { enif_make_list_cell(call.env, head, tail) }
    })
}

/// A map. The keys differ, because they come from another map.
pub(crate) fn map(call: CallEnv<'_>, keys: &[ErlNifTerm], values: &[ErlNifTerm]) -> ErlNifTerm {
    let (mut map, size) = (0, keys.len().min(values.len()));
    let (keys, values) = (keys.as_ptr().cast_mut(), values.as_ptr().cast_mut());
    // SAFETY: both lists have at least this length, and all terms are of this environment. The pointer is to a local.
    let made = unsafe { enif_make_map_from_arrays(call.env, keys, values, size, &mut map) };
    assert_ne!(made, 0, "the keys of a map differ");
    map
}

/// A copy of a term, in an environment of its own.
pub(crate) struct TermCopy {
    env: NonNull<ErlNifEnv>,
    term: ErlNifTerm,
}

// SAFETY: the copy does not change. Any thread may read it and free it.
unsafe impl Send for TermCopy {}
// SAFETY: as above.
unsafe impl Sync for TermCopy {}

impl TermCopy {
    /// If there is no memory, the VM terminates.
    pub(crate) fn of(term: ErlNifTerm) -> Self {
        // SAFETY: the environment is new and not shared. The term belongs to the running call, so it is alive.
        let (env, term) = unsafe {
            let env = enif_alloc_env();
            (env, enif_make_copy(env, term))
        };
        let env = NonNull::new(env).expect("the VM has terminated without memory");
        Self { env, term }
    }

    /// Whether a term of the running call is `=:=` to the copy.
    pub(crate) fn is_of(&self, term: ErlNifTerm) -> bool {
        // SAFETY: the function reads the two terms, which are alive.
        unsafe { enif_is_identical(self.term, term) != 0 }
    }

    /// The term, copied into this environment.
    pub(crate) fn to_term(&self, call: CallEnv<'_>) -> ErlNifTerm {
        // SAFETY: the environment is that of the running call. The function only reads the copy.
        unsafe { enif_make_copy(call.env, self.term) }
    }
}

impl Drop for TermCopy {
    fn drop(&mut self) {
        // SAFETY: allocated in `of`, and freed once.
        unsafe { enif_free_env(self.env.as_ptr()) }
    }
}

/// The elements of a tuple.
#[inline(always)]
pub(crate) fn elements<'a>(call: CallEnv<'a>, term: ErlNifTerm) -> Option<&'a [ErlNifTerm]> {
    let (mut arity, mut first) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the pointers are to locals, and the term is of this environment; both are filled on success.
    let (arity, first) = unsafe {
        if enif_get_tuple(call.env, term, arity.as_mut_ptr(), first.as_mut_ptr()) == 0 {
            return None;
        }
        (arity.assume_init(), first.assume_init())
    };
    if arity == 0 {
        return Some(&[]);
    }
    // SAFETY: the VM reports `arity` elements there, and terms do not move while a NIF runs.
    Some(unsafe { std::slice::from_raw_parts(first, arity as usize) })
}

/// The lowest three bits of the word of a list cell. The other bits are the cell's address.
const LIST_TAG: u64 = 1;

/// Whether this VM has that representation.
static ARE_LISTS_TAGGED: AtomicBool = AtomicBool::new(false);

/// Tests the representation with two cells that the VM makes one after the other.
fn are_lists_tagged(call: CallEnv<'_>) -> bool {
    let head = 12345.encode(call.env()).as_c_arg();
    let last = list(call, iter::once(head), nil());
    let first = list(call, iter::once(head), last);
    let is_tagged = |list: ErlNifTerm| word(list) % 8 == LIST_TAG;
    let apart = size_of::<[ErlNifTerm; 2]>() as u64;
    // Both words have this tag and differ by the size of one cell, so the rest of each word is an address.
    is_tagged(last) && is_tagged(first) && word(first) == word(last) + apart && {
        // SAFETY: the tests above show that this is the address of a cell, which is alive.
        unsafe { cell(first) == [head, last] }
    }
}

/// # Safety
/// [`ARE_LISTS_TAGGED`] is set, and `list` is a list cell that is alive.
#[inline(always)]
unsafe fn cell(list: ErlNifTerm) -> [ErlNifTerm; 2] {
    // SAFETY: as required of the caller. Terms do not move while a NIF runs.
    unsafe { *((word(list) - LIST_TAG) as *const [ErlNifTerm; 2]) }
}

/// The head and the tail of a list cell. `None` for another term.
#[inline(always)]
pub(crate) fn list_cell(call: CallEnv<'_>, term: ErlNifTerm) -> Option<(ErlNifTerm, ErlNifTerm)> {
    // Reads the cell directly, because a call into the VM costs more than all other work on a cell.
    if word(term) % 8 == LIST_TAG && ARE_LISTS_TAGGED.load(Ordering::Relaxed) {
        // SAFETY: terms of the running call are alive.
        let [head, tail] = unsafe { cell(term) };
        return Some((head, tail));
    }
    let (mut head, mut tail) = (0, 0);
    // SAFETY: the pointers are to locals, and the term is of this environment.
    let is_cell = unsafe { enif_get_list_cell(call.env, term, &mut head, &mut tail) };
    (is_cell != 0).then_some((head, tail))
}

/// The number of pairs of a map. `None` for another term.
#[inline(always)]
pub(crate) fn map_size(call: CallEnv<'_>, term: ErlNifTerm) -> Option<usize> {
    let mut size = 0;
    // SAFETY: the pointer is to a local, and the term is of this environment.
    let is_map = unsafe { enif_get_map_size(call.env, term, &mut size) };
    (is_map != 0).then_some(size)
}

/// Calls `visit` with each key and value of a map of this size, until it fails.
#[inline(always)]
pub(crate) fn visit_pairs<E: From<OutOfMemory>>(
    call: CallEnv<'_>,
    map: ErlNifTerm,
    size: usize,
    mut visit: impl FnMut(ErlNifTerm, ErlNifTerm) -> Result<(), E>,
) -> Result<(), E> {
    let (env, mut iterator) = (call.env, MaybeUninit::uninit());
    let head = ErlNifMapIteratorEntry::ERL_NIF_MAP_ITERATOR_HEAD;
    // SAFETY: the pointer is to a local, and the term is of this environment.
    if unsafe { enif_map_iterator_create(env, map, iterator.as_mut_ptr(), head) } == 0 {
        return Err(OutOfMemory.into());
    }
    // SAFETY: filled on success.
    let iterator = unsafe { iterator.assume_init_mut() };
    let mut visited = Ok(());
    for left in (0..size).rev() {
        let (mut key, mut value) = (0, 0);
        // SAFETY: the iterator belongs to a map of this environment, and the pointers are to locals.
        unsafe {
            enif_map_iterator_get_pair(env, iterator, &mut key, &mut value);
            if left > 0 {
                enif_map_iterator_next(env, iterator);
            }
        }
        visited = visit(key, value);
        if visited.is_err() {
            break;
        }
    }
    // SAFETY: created, and destroyed once. (If `visit` panics, a bug, its memory is lost.)
    unsafe { enif_map_iterator_destroy(env, iterator) };
    visited
}

/// Whether an integer has at most 1024 bits. The time does not depend on its length.
pub(crate) fn is_short_integer(integer: Term<'_>) -> bool {
    /// Bytes of 2^1024.
    const BYTES: usize = 129;
    /// -2^1024 and 2^1024, in an environment that is never freed.
    static BOUNDS: OnceLock<[ErlNifTerm; 2]> = OnceLock::new();
    let [least, most] = *BOUNDS.get_or_init(|| {
        // SAFETY: the environment is new, and never freed.
        let env = unsafe { Env::new(&(), enif_alloc_env()) };
        [1, 0].map(|sign| {
            // In the external format: a big integer, its number of bytes, its sign, and the bytes in little-endian
            // order.
            let mut bytes = [0; 4 + BYTES];
            bytes[..4].copy_from_slice(&[131, 110, BYTES as u8, sign]);
            bytes[3 + BYTES] = 1;
            let bound = env.binary_to_term(&bytes);
            bound.expect("it is an integer").0.as_c_arg()
        })
    });
    let integer = integer.as_c_arg();
    // SAFETY: all three terms are alive.
    unsafe { enif_compare(integer, least) > 0 && enif_compare(integer, most) < 0 }
}

/// Whether a port is of this node. Then its word determines it, as for a local pid.
pub(crate) fn is_local_port(port: Term<'_>) -> bool {
    let env = port.get_env().as_c_arg();
    let mut local = MaybeUninit::<ErlNifPort>::uninit();
    // SAFETY: the pointer is to a local, and the term is of this environment.
    unsafe { enif_get_local_port(env, port.as_c_arg(), local.as_mut_ptr()) != 0 }
}

/// A term in the external format. If there is no memory, rustler's own function panics; this one returns an error.
pub(crate) fn external_format(term: Term<'_>) -> Result<OwnedBinary, OutOfMemory> {
    let (env, mut binary) = (term.get_env().as_c_arg(), MaybeUninit::uninit());
    // SAFETY: the pointer is to a local, and the term is of this environment. On success the binary is filled and
    // owned.
    unsafe {
        if enif_term_to_binary(env, term.as_c_arg(), binary.as_mut_ptr()) == 0 {
            return Err(OutOfMemory);
        }
        Ok(OwnedBinary::from_raw(binary.assume_init()))
    }
}

/// A number as a term.
#[inline(always)]
pub(crate) fn number(call: CallEnv<'_>, number: u64) -> ErlNifTerm {
    match byte_word(number) {
        Some(word) => word as ErlNifTerm,
        None => number.encode(call.env()).as_c_arg(),
    }
}
