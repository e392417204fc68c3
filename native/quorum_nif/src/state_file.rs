//! The state file of a voter (option `state_file`): what it must know after a restart. `quorum::node_voter::State` is
//! its content.
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

use crate::machine;
use crate::nodes::Nodes;
use quorum::node_voter::{State, StateError, ANY_HEAD};
use rustler::{Atom, Binary, Encoder, Env, NewBinary, NifResult, Term};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

mod atoms {
    rustler::atoms! { error, lost, nil, none, ok }
}

/// The number of the last write of each file.
static WRITERS: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());

/// What is at the path of a state file.
enum Found {
    Nothing,
    State(Vec<u8>, Box<State>),
    /// A file without content, which may be replaced, and what is wrong with it.
    Lost(&'static str),
    /// It must not be replaced.
    Error(String),
}

/// `state_read(Path, Node) -> {ok, Bytes, {Number, Nodes, LeaseMs} | none} | nil | {lost, Sentence} | {error,
/// Sentence}`: see [`Found`]. The view of the file is for the user.
#[rustler::nif(schedule = "DirtyIo")]
fn state_read<'a>(env: Env<'a>, path: Binary<'a>, node: Atom) -> NifResult<Term<'a>> {
    let mut nodes = Nodes::default();
    let node = nodes.name(env, node)?;
    Ok(match read(&path_of(&path)?, node.text()) {
        Found::Nothing => atoms::nil().encode(env),
        Found::State(bytes, state) => {
            let mut binary = NewBinary::new(env, bytes.len());
            binary.as_mut_slice().copy_from_slice(&bytes);
            let view = state.record.as_ref().map(|record| {
                (
                    record.id.number,
                    machine::members(env, record, &mut nodes),
                    record.lease_ms,
                )
            });
            let view = view.map_or(atoms::none().encode(env), |view| view.encode(env));
            (atoms::ok(), Binary::from(binary), view).encode(env)
        }
        Found::Lost(sentence) => (atoms::lost(), sentence).encode(env),
        Found::Error(sentence) => (atoms::error(), sentence).encode(env),
    })
}

/// `state_store(Path, Bytes, Number) -> {ok, Stored} | {error, Sentence}`: after it returns, the state survives a crash
/// of the machine. `Stored` is `false` if there was a write with a higher number; then the file is not changed. An
/// error, too, if the file is not one of the node, and not an empty or damaged one.
#[rustler::nif(schedule = "DirtyIo")]
fn state_store(path: Binary, bytes: Binary, number: u64) -> NifResult<Result<bool, String>> {
    let path = path_of(&path)?;
    let state = State::decode(&bytes).map_err(|_| rustler::Error::BadArg)?;
    // A writer that panicked has left a complete file.
    let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    if writers.get(&path).is_some_and(|last| *last > number) {
        return Ok(Ok(false));
    }
    if let Found::Error(sentence) = read(&path, state.node.text()) {
        return Ok(Err(sentence));
    }
    let stored = replace(&path, &bytes);
    if stored.is_ok() {
        writers.insert(path, number);
    }
    Ok(stored.map(|()| true).map_err(|error| error.to_string()))
}

fn read(path: &Path, node: &str) -> Found {
    let is_begun = |bytes: &Vec<u8>| bytes.starts_with(ANY_HEAD) || ANY_HEAD.starts_with(bytes);
    if content(&beside(path, NEW)).is_ok_and(|bytes| bytes.is_some_and(|bytes| !is_begun(&bytes))) {
        return Found::Error(format!("another file has its name with {NEW} at the end"));
    }
    let bytes = match content(path) {
        Ok(None) => return Found::Nothing,
        Ok(Some(bytes)) => bytes,
        Err(error) => return Found::Error(error.to_string()),
    };
    match State::decode(&bytes) {
        Ok(state) if state.node.text() != node => {
            Found::Error(format!("it is the file of node {}", state.node.text()))
        }
        Ok(state) => Found::State(bytes, Box::new(state)),
        Err(StateError::Empty) => Found::Lost("it is empty"),
        Err(StateError::Damaged) => Found::Lost("it is damaged"),
        Err(StateError::Version) => {
            Found::Error("it is the state file of another version of canal_lock".into())
        }
        Err(StateError::Foreign) => Found::Error("it is not a state file of canal_lock".into()),
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

/// In bytes. A file has at most four lists of 16 names of at most 1020 bytes.
const LONGEST: u64 = 1 << 20;

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path, NEW);
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
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
