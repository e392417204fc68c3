//! The message to a process whose request has ended: `{canal_lock, Reference, {acquired, N} | closed}`.

use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::{Notice, Told};
use rustler::sys::{ErlNifEnv, ErlNifPid};
use rustler::Encoder;

mod atoms {
    rustler::atoms! { acquired, canal_lock, closed }
}

/// The receiver, and the reference of the request. The memory for the message is reserved with it, before the process
/// waits.
pub(crate) struct Message {
    receiver: ErlNifPid,
    /// Has the reference. Owned.
    environment: *mut ErlNifEnv,
    reference: ErlNifTerm,
}

// SAFETY: the environment is not that of a process, and it is used by one thread at a time.
unsafe impl Send for Message {}

impl Message {
    /// A message to the calling process.
    pub(crate) fn new(call: CallEnv<'_>, reference: ErlNifTerm) -> Self {
        let (environment, reference) = enif::copy_to_new_env(reference);
        Self {
            receiver: enif::self_pid(call),
            environment,
            reference,
        }
    }

    /// Whether it is that of the request with this reference.
    pub(crate) fn is_of(&self, reference: ErlNifTerm) -> bool {
        enif::identical(self.reference, reference)
    }
}

impl Notice for Message {
    type Here<'a> = CallEnv<'a>;

    fn tell(self, call: CallEnv<'_>, told: Told) {
        // SAFETY: the environment belongs to this message.
        let own = unsafe { CallEnv::new(self.environment) };
        let answer = match told {
            Told::Granted(out) => {
                let out = out.encode(own.env()).as_c_arg();
                enif::tuple(own, &[atoms::acquired().as_c_arg(), out])
            }
            Told::Closed => atoms::closed().as_c_arg(),
        };
        let message = [atoms::canal_lock().as_c_arg(), self.reference, answer];
        let message = enif::tuple(own, &message);
        // SAFETY: the environment is owned, and its terms are not used after this.
        unsafe { enif::send(call, &self.receiver, self.environment, message) };
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: from `copy_to_new_env`, and freed once.
        unsafe { enif::free_env(self.environment) };
    }
}
