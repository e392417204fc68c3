//! A list that starts on the stack with space for `N` values, and moves to the heap when it outgrows that space.
//!
//! The crate smallvec takes three times as many instructions to push a value, and reading a short key consists mostly
//! of pushes. Filling the space with zeros first would take as long as reading a tuple.

use permit_table::{reserve, OutOfMemory};
use std::mem::MaybeUninit;

pub(super) struct InlineVec<T, const N: usize> {
    /// The first `length` of them are values.
    inline: [MaybeUninit<T>; N],
    length: usize,
    /// All values, if it is not empty; then `length` is `N`.
    heap: Vec<T>,
}

impl<T: Copy, const N: usize> InlineVec<T, N> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            inline: [const { MaybeUninit::uninit() }; N],
            length: 0,
            heap: Vec::new(),
        }
    }

    #[inline(always)]
    pub(super) fn values(&self) -> &[T] {
        if !self.heap.is_empty() {
            return &self.heap;
        }
        // SAFETY: `length` values have been written.
        unsafe { std::slice::from_raw_parts(self.inline.as_ptr().cast(), self.length) }
    }

    #[inline(always)]
    pub(super) fn values_mut(&mut self) -> &mut [T] {
        if !self.heap.is_empty() {
            return &mut self.heap;
        }
        // SAFETY: as in `values`.
        unsafe { std::slice::from_raw_parts_mut(self.inline.as_mut_ptr().cast(), self.length) }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, value: T) -> Result<(), OutOfMemory> {
        match self.inline.get_mut(self.length) {
            Some(place) => {
                place.write(value);
                self.length += 1;
                Ok(())
            }
            None => self.extend_on_heap(1, [value].into_iter()),
        }
    }

    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<T> {
        if let Some(last) = self.heap.pop() {
            self.length = if self.heap.is_empty() { 0 } else { N };
            return Some(last);
        }
        self.length = self.length.checked_sub(1)?;
        // SAFETY: as in `values`.
        Some(unsafe { self.inline[self.length].assume_init() })
    }

    /// Appends `count` values.
    #[inline(always)]
    pub(super) fn extend(
        &mut self,
        count: usize,
        values: impl Iterator<Item = T>,
    ) -> Result<(), OutOfMemory> {
        if count > N - self.length {
            return self.extend_on_heap(count, values);
        }
        let places = &mut self.inline[self.length..self.length + count];
        let written = places
            .iter_mut()
            .zip(values)
            .map(|(place, value)| place.write(value));
        self.length += written.count();
        Ok(())
    }

    #[cold]
    fn extend_on_heap(
        &mut self,
        count: usize,
        values: impl Iterator<Item = T>,
    ) -> Result<(), OutOfMemory> {
        let moving = if self.heap.is_empty() { self.length } else { 0 };
        reserve(&mut self.heap, moving + count)?;
        let moved = self.inline[..moving].iter();
        // SAFETY: as in `values`.
        let moved = moved.map(|value| unsafe { value.assume_init() });
        self.heap.extend(moved);
        self.heap.extend(values.take(count));
        self.length = N;
        Ok(())
    }
}
