//! Lost permits of shared keys: those that are on the record of a process, and not in the count of their key
//! (`Table::lose`).

use crate::keys::Node;
use crate::memory::OutOfMemory;
use crate::sorted_list::SortedList;
use std::ptr;

/// A number of lost permits.
struct Row {
    /// The address of the node of their key, which is not dead (K6). Only compared.
    node: usize,
    /// The identity word of their process. 0 in the sum of a key.
    word: u64,
    permits: u64,
}

/// Two lists: a search takes as long for a process of many keys, and for a key of many processes, as for others.
#[derive(Default)]
pub(crate) struct Lost {
    /// By their places.
    of_processes: SortedList<Row>,
    /// The sums, by the sort keys of their keys.
    of_keys: SortedList<Row>,
}

fn address<K>(node: &Node<K>) -> usize {
    ptr::from_ref(node).addr()
}

fn is_of<K>(node: &Node<K>, word: u64) -> impl Fn(&Row) -> bool {
    let node = address(node);
    move |row| row.word == word && row.node == node
}

/// Differs between most processes of a key, and between most keys of a process.
fn place<K>(node: &Node<K>, word: u64) -> u64 {
    node.sort_key()
        .wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn reserve_row<K>(
    rows: &mut SortedList<Row>,
    place: u64,
    node: &Node<K>,
    word: u64,
) -> Result<(), OutOfMemory> {
    if rows.find(place, is_of(node, word)).is_none() {
        rows.reserve(place)?.insert(Row {
            node: address(node),
            word,
            permits: 0,
        });
    }
    Ok(())
}

/// Without permits, the row is removed.
fn take_from<K>(rows: &mut SortedList<Row>, place: u64, node: &Node<K>, word: u64, fewer: u64) {
    if let Some(row) = rows.find_mut(place, is_of(node, word)) {
        row.permits -= fewer;
    }
    let is_of = is_of(node, word);
    rows.remove(place, |row| is_of(row) && row.permits == 0);
}

impl Lost {
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_empty(&self) -> bool {
        self.of_processes.is_empty() && self.of_keys.is_empty()
    }

    /// Whether a process has lost permits of the key.
    pub(crate) fn has<K>(&self, node: &Node<K>) -> bool {
        let sum = self.of_keys.find(node.sort_key(), is_of(node, 0));
        sum.is_some_and(|sum| sum.permits > 0)
    }

    /// The lost permits of a process.
    pub(crate) fn of<K>(&self, node: &Node<K>, word: u64) -> u64 {
        let row = self.of_processes.find(place(node, word), is_of(node, word));
        row.map_or(0, |row| row.permits)
    }

    /// Reserves the memory for [`Lost::add`]. [`Lost::take`] of nothing frees it.
    pub(crate) fn reserve<K>(&mut self, node: &Node<K>, word: u64) -> Result<(), OutOfMemory> {
        reserve_row(&mut self.of_keys, node.sort_key(), node, 0)?;
        reserve_row(&mut self.of_processes, place(node, word), node, word)
    }

    /// More permits of a process are lost. Cannot fail.
    pub(crate) fn add<K>(&mut self, node: &Node<K>, word: u64, more: u64) {
        let row = self
            .of_processes
            .find_mut(place(node, word), is_of(node, word));
        row.expect("reserved").permits += more;
        let sum = self.of_keys.find_mut(node.sort_key(), is_of(node, 0));
        sum.expect("reserved").permits += more;
    }

    /// Removes up to `most` lost permits of a process. Returns how many.
    pub(crate) fn take<K>(&mut self, node: &Node<K>, word: u64, most: u64) -> u64 {
        let taken = most.min(self.of(node, word));
        take_from(&mut self.of_processes, place(node, word), node, word, taken);
        take_from(&mut self.of_keys, node.sort_key(), node, 0, taken);
        taken
    }
}
