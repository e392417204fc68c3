//! What the voter of a node must know after a restart: the content of its state file.
//!
//! ```text
//!   canal_lock_quorum state 1         the first line of all versions, with the number of the version
//!   postcard                          the state
//!   4 bytes                           CRC-32 of all bytes before, lowest first
//! ```

use crate::message::Fence;
use crate::view::{Ballot, Id, NodeName, Record};
use serde::{Deserialize, Serialize};

/// The first line of a state file of any version, without the number.
pub const ANY_HEAD: &[u8] = b"canal_lock_quorum state ";
const HEAD: &[u8] = b"canal_lock_quorum state 1\n";

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    /// The node that wrote the file.
    pub node: NodeName,
    /// The identity of the file.
    pub id: Id,
    /// How many voters this node has started, in starts and in views.
    pub life: u32,
    /// The view.
    pub record: Option<Record>,
    /// Whether the voter has voted in this view.
    pub has_voted: bool,
    /// No lower ballot is accepted in this view.
    pub promised: Ballot,
    /// The record of the next view that was accepted last.
    pub accepted: Option<(Ballot, Record)>,
    /// Whether agents of no member may have votes.
    pub guests: bool,
    /// No higher fence was given or recorded.
    pub mark: Fence,
}

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// There are none.
    Empty,
    /// They begin as a state, and the rest is wrong.
    Damaged,
    /// They are a state of another version.
    Version,
    /// They are something else.
    Foreign,
}

impl State {
    /// Of a node that starts for the first time.
    #[must_use]
    pub fn new(node: NodeName, id: Id) -> State {
        State {
            node,
            id,
            life: 0,
            record: None,
            has_voted: false,
            promised: Ballot::default(),
            accepted: None,
            guests: true,
            mark: Fence::default(),
        }
    }

    /// The content of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        bytes.extend(postcard::to_stdvec(self).unwrap_or_default());
        bytes.extend(crc32(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// Why it is not a state.
    pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
        if bytes.is_empty() {
            return Err(StateError::Empty);
        }
        let Some(rest) = bytes.strip_prefix(HEAD) else {
            return Err(match () {
                () if HEAD.starts_with(bytes) => StateError::Damaged,
                () if bytes.starts_with(ANY_HEAD) => StateError::Version,
                () => StateError::Foreign,
            });
        };
        let Some((content, sum)) = rest.split_last_chunk::<4>() else {
            return Err(StateError::Damaged);
        };
        if crc32(&bytes[..bytes.len() - 4]) != u32::from_le_bytes(*sum) {
            return Err(StateError::Damaged);
        }
        let state = postcard::take_from_bytes(content);
        match state {
            Ok((state, [])) => Ok(state),
            _ => Err(StateError::Damaged),
        }
    }
}

/// CRC-32 as of zip, gzip and `erlang:crc32/1`. Bit by bit: the content is short.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), shift);
    !bytes.iter().fold(u32::MAX, add)
}
