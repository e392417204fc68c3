//! Reads and writes the file of the fence mark: all fences up to the mark are reserved. A voter reads it at its start
//! and writes it once per block of fences.
//!
//! A write creates a temporary file next to the old one, syncs it, renames it, and syncs the directory. A complete
//! file, old or new, therefore always exists.
//!
//! A mutex serializes the writers, and none lowers the mark. A killed process may still be writing on a dirty
//! scheduler, which cannot be interrupted, while its successor already writes a higher mark.

use rustler::{Binary, NifResult};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static WRITERS: Mutex<()> = Mutex::new(());

/// `fence_read(Path) -> {ok, Mark} | {ok, none} | {error, Sentence}`: `none` if the file does not exist.
#[rustler::nif(schedule = "DirtyIo")]
fn fence_read(path: Binary) -> NifResult<Result<Option<u64>, String>> {
    Ok(read(&path_of(&path)?).map_err(|error| error.to_string()))
}

/// `fence_store(Path, Mark) -> {ok, Stored} | {error, Sentence}`: after it returns, the mark survives a crash of the
/// machine. `Stored` is `false` if the file already had this mark or a higher one.
#[rustler::nif(schedule = "DirtyIo")]
fn fence_store(path: Binary, mark: u64) -> NifResult<Result<bool, String>> {
    let path = path_of(&path)?;
    // A writer that panicked has left a complete file.
    let _guard = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let stored = match read(&path) {
        Ok(Some(before)) if before >= mark => Ok(false),
        // An unreadable file is replaced: the voter that wrote it knew its mark.
        _ => write(&path, mark).map(|()| true),
    };
    Ok(stored.map_err(|error| error.to_string()))
}

fn read(path: &Path) -> io::Result<Option<u64>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let mark = text
        .strip_prefix(HEAD)
        .and_then(|rest| rest.strip_suffix('\n'))
        .and_then(|digits| digits.parse().ok());
    let invalid = "not a fence file, or an incomplete one";
    mark.map(Some)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, invalid))
}

const HEAD: &str = "canal_lock_quorum fences below ";

fn write(path: &Path, mark: u64) -> io::Result<()> {
    let mut beside = OsString::from(path);
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = File::create(&beside)?;
    file.write_all(format!("{HEAD}{mark}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder(path)
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
fn path_of(bytes: &Binary<'_>) -> NifResult<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::OsStr::from_bytes(bytes.as_slice()).into())
}

#[cfg(not(unix))]
fn path_of(bytes: &Binary<'_>) -> NifResult<PathBuf> {
    let text = std::str::from_utf8(bytes.as_slice()).map_err(|_| rustler::Error::BadArg)?;
    Ok(text.into())
}
