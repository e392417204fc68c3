//! The names of nodes: atoms in Erlang, text in the machines.

use crate::error::CallError;
use quorum::view::NodeName;
use rustler::{Atom, Env};
use std::collections::HashMap;

/// The names that were converted before. There is one for each node that a message has named, and the VM keeps an atom
/// for each of them anyway.
#[derive(Default)]
pub(crate) struct Nodes {
    names: HashMap<usize, NodeName>,
    atoms: HashMap<NodeName, Atom>,
}

/// Tags of the external term format.
const VERSION: u8 = 131;
const ATOM_LATIN1: u8 = 100;
const ATOM_UTF8: u8 = 118;
const SMALL_ATOM_UTF8: u8 = 119;

impl Nodes {
    /// The text of an atom.
    pub(crate) fn name(&mut self, env: Env<'_>, atom: Atom) -> Result<NodeName, CallError> {
        if let Some(name) = self.names.get(&atom.as_c_arg()) {
            return Ok(name.clone());
        }
        let name = text(&atom.to_term(env).to_binary()).and_then(|text| NodeName::new(&text));
        let name = name.ok_or(CallError::BadArg)?;
        self.add(&name, atom);
        Ok(name)
    }

    /// The texts of atoms.
    pub(crate) fn names(
        &mut self,
        env: Env<'_>,
        atoms: &[Atom],
    ) -> Result<Vec<NodeName>, CallError> {
        atoms.iter().map(|atom| self.name(env, *atom)).collect()
    }

    /// The atom of a text. `None` for a text of more than 255 characters, which no node has.
    pub(crate) fn atom(&mut self, env: Env<'_>, name: &NodeName) -> Option<Atom> {
        if let Some(atom) = self.atoms.get(name) {
            return Some(*atom);
        }
        let text = name.text().as_bytes();
        let mut bytes = vec![VERSION, ATOM_UTF8];
        bytes.extend(u16::try_from(text.len()).ok()?.to_be_bytes());
        bytes.extend(text);
        // SAFETY: the bytes are an atom in the external term format. Names come from nodes with the cookie of this one,
        // which could also make atoms here by sending them.
        let (term, _) = unsafe { env.binary_to_term_trusted(&bytes) }?;
        let atom = Atom::from_term(term).ok()?;
        self.add(name, atom);
        Some(atom)
    }

    /// The atoms of texts.
    pub(crate) fn atoms<'n>(
        &mut self,
        env: Env<'_>,
        names: impl IntoIterator<Item = &'n NodeName>,
    ) -> Vec<Atom> {
        names
            .into_iter()
            .filter_map(|name| self.atom(env, name))
            .collect()
    }

    fn add(&mut self, name: &NodeName, atom: Atom) {
        self.names.insert(atom.as_c_arg(), name.clone());
        self.atoms.insert(name.clone(), atom);
    }
}

/// The text of an atom in the external term format. (The VM's own function reads Latin-1 only.)
fn text(external: &[u8]) -> Option<String> {
    match external {
        [VERSION, SMALL_ATOM_UTF8, _, text @ ..] | [VERSION, ATOM_UTF8, _, _, text @ ..] => {
            String::from_utf8(text.to_vec()).ok()
        }
        [VERSION, ATOM_LATIN1, _, _, text @ ..] => {
            Some(text.iter().copied().map(char::from).collect())
        }
        _ => None,
    }
}
