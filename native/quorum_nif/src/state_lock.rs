//! Keeps other VMs away from a state file: two members that shared one would each continue with the other's fences.
//!
//! The lock is `flock` on the file `PATH.lock`. It is separate from the state file, because each write replaces that
//! one. The VM keeps the lock until it ends: a process that is killed may still write. The system releases it even if
//! the VM crashes, and the empty file stays.

use crate::state_file::{beside, path_of};
use rustler::{Binary, NifResult};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The locks of this VM. Files opened by Rust are closed in programs that the VM starts.
static LOCKS: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

/// `state_lock(Path) -> {ok, IsLocked} | {error, Sentence}`: `true` if this VM has the lock, now or from an earlier
/// call; `false` if another VM has it. An error, also if this VM has the lock, if the folder of the file does not exist
/// or cannot be written.
#[rustler::nif(schedule = "DirtyIo")]
fn state_lock(path: Binary) -> NifResult<Result<bool, String>> {
    let path = path_of(&path)?;
    if let Err(error) = writable(&path.with_file_name(".")) {
        return Ok(Err(error.to_string()));
    }
    // Each change of the list is a single call, so a panic leaves it valid.
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if locks.iter().any(|(locked, _)| *locked == path) {
        return Ok(Ok(true));
    }
    let file = match lock(&path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let is_locked = file.is_some();
    locks.extend(file.map(|file| (path, file)));
    Ok(Ok(is_locked))
}

/// `None` if another VM has the lock.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true);
    let file = file.open(beside(path, ".lock"))?;
    match exclusive(&file) {
        Ok(()) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Each write of the state file creates a file in this folder.
#[cfg(unix)]
fn writable(folder: &Path) -> io::Result<()> {
    use rustix::fs::{access, Access};
    Ok(access(folder, Access::WRITE_OK)?)
}

/// On other systems, opening the lock's file fails.
#[cfg(not(unix))]
fn writable(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn exclusive(file: &File) -> io::Result<()> {
    use rustix::fs::{flock, FlockOperation};
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// Other systems have no `flock`: there, only the node's name in the file is checked.
#[cfg(not(unix))]
fn exclusive(_: &File) -> io::Result<()> {
    Ok(())
}
