//! The state file of a member (option `fence_file`): what a voter must know after a restart. A voter reads it at its
//! start, and writes it before its first frame and once per block of fences. `canal_lock_quorum_state.erl` decides what
//! the content means.
//!
//! ```text
//!   canal_lock_quorum state 2
//!   node a@host1                     the node that wrote it
//!   members a@host1 b@host2          its member list
//!   list 00112233445566778899aabbccddeeff      128 bits that identify the list, and which members vote for a name
//!   former b@host2 c@host3           members of earlier lists that may still have one of these. Absent without any
//!   clients x@host4                  the register: the clients that may have votes. Absent without any
//!   life 7                           the number of the voter's last start
//!   lease_ms 10000                   no vote was promised for longer
//!   below 1790000000000              the mark: no higher fence was given. Absent while the fences are lost
//!   checksum 0b1c2d3e                CRC-32 of the lines before
//! ```
//!
//! Format 1 is the line `canal_lock_quorum fences below MARK`. It is read as a file without node, list, life and lease.
//!
//! A write creates a temporary file next to the old one, syncs it, renames it, and syncs the directory. A complete
//! file, old or new, therefore always exists.
//!
//! A mutex serializes the writers of this VM, and no earlier write replaces the file of a later one. A killed process
//! may still be writing on a dirty scheduler, which cannot be interrupted, while its successor already writes.

use rustler::{Binary, NifMap, NifResult};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The number of the last write of each file.
static WRITERS: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

/// The content. In format 1, texts and lists are empty, and the numbers but `below` are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, NifMap)]
struct State {
    node: String,
    members: Vec<String>,
    /// 32 hexadecimal digits.
    list: String,
    former: Vec<String>,
    clients: Vec<String>,
    life: u32,
    lease_ms: u64,
    below: Option<u64>,
}

/// `state_read(Path) -> {ok, State} | {ok, nil} | {error, Sentence}`: `nil` if the file does not exist.
#[rustler::nif(schedule = "DirtyIo")]
fn state_read(path: Binary) -> NifResult<Result<Option<State>, String>> {
    Ok(read(&path_of(&path)?).map_err(|error| error.to_string()))
}

/// `state_store(Path, State, Number) -> {ok, Stored} | {error, Sentence}`: after it returns, the state survives a crash
/// of the machine. `Stored` is `false` if the file has a later life of the same node, or if there was a write with a
/// higher number; then it is not changed. A mark is never lowered. It is removed only by a later life whose fences are
/// lost.
#[rustler::nif(schedule = "DirtyIo")]
fn state_store(path: Binary, state: State, number: u64) -> NifResult<Result<bool, String>> {
    let (path, mut state) = (path_of(&path)?, state);
    // A writer that panicked has left a complete file.
    let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    if writers.get(&path).is_some_and(|last| *last > number) {
        return Ok(Ok(false));
    }
    // An unreadable file is replaced: the voter that writes knows its state.
    if let Ok(Some(before)) = read(&path) {
        if before.node == state.node && before.life > state.life {
            return Ok(Ok(false));
        }
        let is_lost = before.life < state.life && state.below.is_none();
        if before.node == state.node && !is_lost {
            state.below = state.below.max(before.below);
        }
    }
    let text = state.to_text();
    if State::from_text(&text).as_ref() != Some(&state) {
        return Err(rustler::Error::BadArg);
    }
    let stored = replace(&path, &text);
    if stored.is_ok() {
        writers.insert(path, number);
    }
    Ok(stored.map(|()| true).map_err(|error| error.to_string()))
}

fn read(path: &Path) -> io::Result<Option<State>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let invalid = "not a fence file, or an incomplete one";
    State::from_text(&text)
        .map(Some)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, invalid))
}

const HEAD: &str = "canal_lock_quorum state 2\n";
const HEAD_1: &str = "canal_lock_quorum fences below ";

impl State {
    fn to_text(&self) -> String {
        let mut text = format!(
            "{HEAD}node {}\nmembers {}\nlist {}\n",
            self.node,
            self.members.join(" "),
            self.list,
        );
        if !self.former.is_empty() {
            let _ = writeln!(text, "former {}", self.former.join(" "));
        }
        if !self.clients.is_empty() {
            let _ = writeln!(text, "clients {}", self.clients.join(" "));
        }
        let _ = write!(text, "life {}\nlease_ms {}\n", self.life, self.lease_ms);
        if let Some(below) = self.below {
            let _ = writeln!(text, "below {below}");
        }
        let checksum = crc32(text.as_bytes());
        let _ = writeln!(text, "checksum {checksum:08x}");
        text
    }

    /// `None` if any byte is wrong: the only valid text is the one that [`State::to_text`] writes.
    fn from_text(text: &str) -> Option<State> {
        if let Some(mark) = text.strip_prefix(HEAD_1) {
            let mark = mark.strip_suffix('\n')?.parse().ok()?;
            return Some(State {
                below: Some(mark),
                ..State::default()
            });
        }
        let mut state = State::default();
        for line in text.strip_prefix(HEAD)?.lines() {
            let (key, value) = line.split_once(' ')?;
            match key {
                "node" => state.node = value.to_owned(),
                "members" => state.members = names(value),
                "list" => state.list = value.to_owned(),
                "former" => state.former = names(value),
                "clients" => state.clients = names(value),
                "life" => state.life = value.parse().ok()?,
                "lease_ms" => state.lease_ms = value.parse().ok()?,
                "below" => state.below = Some(value.parse().ok()?),
                "checksum" => {}
                _ => return None,
            }
        }
        (state.to_text() == text).then_some(state)
    }
}

fn names(value: &str) -> Vec<String> {
    value.split(' ').map(str::to_owned).collect()
}

/// CRC-32 as of zip, gzip and `erlang:crc32/1`. Bit by bit: the text is short.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), shift);
    !bytes.iter().fold(u32::MAX, add)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let beside = beside(path, ".new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder(path)
}

/// The path with this at its end.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut beside = OsString::from(path);
    beside.push(end);
    PathBuf::from(beside)
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Directories cannot be opened on these systems.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
pub(crate) fn path_of(bytes: &Binary<'_>) -> NifResult<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::OsStr::from_bytes(bytes.as_slice()).into())
}

#[cfg(not(unix))]
pub(crate) fn path_of(bytes: &Binary<'_>) -> NifResult<PathBuf> {
    let text = std::str::from_utf8(bytes.as_slice()).map_err(|_| rustler::Error::BadArg)?;
    Ok(text.into())
}
