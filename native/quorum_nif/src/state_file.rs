//! The state file of a member (option `state_file`): what a voter must know after a restart. A voter reads it at its
//! start, and writes it before its first frame and once per block of fences. `canal_lock_quorum_state_file.erl` decides
//! what the content means.
//!
//! ```text
//!   canal_lock_quorum state 1
//!   node a@host1                     the node that wrote it
//!   members a@host1 b@host2          its member list
//!   list 00112233445566778899aabbccddeeff      128 bits that identify the list
//!   former b@host2 c@host3           members of earlier lists that may still have one of these. Absent without any
//!   guests false                     whether clients may have votes
//!   life 7                           the number of the voter's last start
//!   lease_ms 10000                   no vote was promised for longer
//!   mark 1790000000000               no higher fence was given. Absent while the fences are lost
//!   checksum 0b1c2d3e                CRC-32 of the lines before
//! ```
//!
//! A file is replaced if it is one of this node, or empty, or damaged: then its first line is right, and the rest is
//! not. Any other file is not changed, nor is a device, a pipe or a folder.
//!
//! A write creates a temporary file next to the old one (`PATH.new`), syncs it, renames it, and syncs the directory. A
//! complete file, old or new, therefore always exists. If another file has the name of the temporary one, the state
//! file cannot be used.
//!
//! A mutex serializes the writers of this VM, and no earlier write replaces the file of a later one. A killed process
//! may still be writing on a dirty scheduler, which cannot be interrupted, while its successor already writes.

use rustler::{Binary, NifMap, NifResult, NifTaggedEnum};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The number of the last write of each file.
static WRITERS: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

/// The content.
#[derive(Clone, Debug, Default, PartialEq, Eq, NifMap)]
struct State {
    node: String,
    members: Vec<String>,
    /// 32 hexadecimal digits.
    list: String,
    former: Vec<String>,
    guests: bool,
    life: u32,
    lease_ms: u64,
    mark: Option<u64>,
}

/// What is at the path of a state file.
#[derive(NifTaggedEnum)]
#[rustler(encode)]
enum Found {
    /// `None`: nothing.
    Ok(Option<State>),
    /// A file without content, which may be replaced, and what is wrong with it.
    Lost(&'static str),
    /// It must not be replaced.
    Error(String),
}

/// `state_read(Path) -> {ok, State | nil} | {lost, Sentence} | {error, Sentence}`: see [`Found`].
#[rustler::nif(schedule = "DirtyIo")]
fn state_read(path: Binary) -> NifResult<Found> {
    Ok(read(&path_of(&path)?))
}

/// `state_store(Path, State, Number) -> {ok, Stored} | {error, Sentence}`: after it returns, the state survives a crash
/// of the machine. `Stored` is `false` if the file has a later life, or if there was a write with a higher number; then
/// it is not changed. A mark is never lowered. It is removed only by a later life whose fences are lost. An error, too,
/// if the file is not one of the node, and not an empty or damaged one.
#[rustler::nif(schedule = "DirtyIo")]
fn state_store(path: Binary, state: State, number: u64) -> NifResult<Result<bool, String>> {
    let (path, mut state) = (path_of(&path)?, state);
    // A writer that panicked has left a complete file.
    let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    if writers.get(&path).is_some_and(|last| *last > number) {
        return Ok(Ok(false));
    }
    match read(&path) {
        Found::Error(sentence) => return Ok(Err(sentence)),
        Found::Ok(Some(before)) if before.node != state.node => {
            return Ok(Err(format!("it is the file of node {}", before.node)));
        }
        Found::Ok(Some(before)) if before.life > state.life => return Ok(Ok(false)),
        Found::Ok(Some(before)) => {
            let is_lost = before.life < state.life && state.mark.is_none();
            state.mark = if is_lost {
                None
            } else {
                state.mark.max(before.mark)
            };
        }
        // The voter that writes knows its state.
        Found::Ok(None) | Found::Lost(_) => {}
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

fn read(path: &Path) -> Found {
    let is_begun = |bytes: &Vec<u8>| bytes.starts_with(ANY_HEAD) || ANY_HEAD.starts_with(bytes);
    if content(&beside(path, NEW)).is_ok_and(|bytes| bytes.is_some_and(|bytes| !is_begun(&bytes))) {
        return Found::Error(format!("another file has its name with {NEW} at the end"));
    }
    let bytes = match content(path) {
        Ok(None) => return Found::Ok(None),
        Ok(Some(bytes)) => bytes,
        Err(error) => return Found::Error(error.to_string()),
    };
    let state = std::str::from_utf8(&bytes).ok().and_then(State::from_text);
    match state {
        Some(state) => Found::Ok(Some(state)),
        None if bytes.is_empty() => Found::Lost("it is empty"),
        None if bytes.starts_with(HEAD.as_bytes()) => Found::Lost("it is damaged"),
        None if bytes.starts_with(ANY_HEAD) => {
            Found::Error("it is the state file of another version of canal_lock".into())
        }
        None => Found::Error("it is not a state file of canal_lock".into()),
    }
}

/// The bytes of a file; `None` if there is none. Opening a pipe could wait forever, and a device must not be replaced.
fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = fs::metadata(path).and_then(|found| match found.is_file() || found.is_dir() {
        true => File::open(path)?.take(LONGEST).read_to_end(&mut bytes),
        false => Err(io::Error::other("it is not a regular file")),
    });
    match read {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The end of the name of the temporary file of a write. One of a write that was interrupted may exist.
const NEW: &str = ".new";

/// In bytes. Names of nodes have at most 255 characters, and there are at most some tens in a file.
const LONGEST: u64 = 1 << 20;

const HEAD: &str = "canal_lock_quorum state 1\n";
/// Of all versions.
const ANY_HEAD: &[u8] = b"canal_lock_quorum state ";

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
        let (guests, life, lease_ms) = (self.guests, self.life, self.lease_ms);
        let _ = write!(text, "guests {guests}\nlife {life}\nlease_ms {lease_ms}\n");
        if let Some(mark) = self.mark {
            let _ = writeln!(text, "mark {mark}");
        }
        let checksum = crc32(text.as_bytes());
        let _ = writeln!(text, "checksum {checksum:08x}");
        text
    }

    /// `None` if any byte is wrong: the only valid text is the one that [`State::to_text`] writes.
    fn from_text(text: &str) -> Option<State> {
        let mut state = State::default();
        for line in text.strip_prefix(HEAD)?.lines() {
            let (key, value) = line.split_once(' ')?;
            match key {
                "node" => state.node = value.to_owned(),
                "members" => state.members = names(value),
                "list" => state.list = value.to_owned(),
                "former" => state.former = names(value),
                "guests" => state.guests = value.parse().ok()?,
                "life" => state.life = value.parse().ok()?,
                "lease_ms" => state.lease_ms = value.parse().ok()?,
                "mark" => state.mark = Some(value.parse().ok()?),
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
    let beside = beside(path, NEW);
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
