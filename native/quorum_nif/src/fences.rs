//! The mark that fences are reserved up to, in a file: read when a voter begins, written once for each block of them.
//!
//! A file is replaced as a whole: another one is written beside it, brought to the disk, and renamed; then the folder
//! is brought to the disk. So there is always a whole one, the old or the new.
//!
//! Writers take turns, and none lowers the mark. A process that is killed while it writes goes on writing (on a dirty
//! scheduler, which nothing interrupts), while its successor already writes more.

use rustler::{Binary, NifResult};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static WRITERS: Mutex<()> = Mutex::new(());

/// `fence_read(Path) -> {ok, Mark} | {ok, none} | {error, Sentence}`: `none` if there is no such file.
#[rustler::nif(schedule = "DirtyIo")]
fn fence_read(path: Binary) -> NifResult<Result<Option<u64>, String>> {
    Ok(read(&path_of(&path)?).map_err(|error| error.to_string()))
}

/// `fence_store(Path, Mark) -> {ok, ok} | {error, Sentence}`: when it has returned, no crash of the machine loses it.
#[rustler::nif(schedule = "DirtyIo")]
fn fence_store(path: Binary, mark: u64) -> NifResult<Result<bool, String>> {
    let path = path_of(&path)?;
    // Whoever panicked meanwhile has left a whole file.
    let _turn = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let stored = match read(&path) {
        Ok(Some(before)) if before >= mark => Ok(false),
        // A file that cannot be read is replaced: what it said was known when it was written.
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
    let is_none = || {
        io::Error::new(
            ErrorKind::InvalidData,
            "it is not a file of fences, or not a whole one",
        )
    };
    mark.map(Some).ok_or_else(is_none)
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

/// A folder cannot be opened there.
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
