//! The message to a process whose request has ended: `{canal_lock, Reference, {acquired, N} | closed}`.

use crate::clock::now_us;
use crate::enif::{self, CallEnv};
use permit_table::{Notice, OutOfMemory, WaitEnd};
use rustler::{Encoder, LocalPid, OwnedBinary, Term};
use std::alloc::{handle_alloc_error, Layout};

mod atoms {
    rustler::atoms! { acquired, canal_lock, closed }
}

/// The end of the external format of a local reference: its identifier, which no other reference of this node has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId([u8; Self::BYTES]);

impl RequestId {
    const BYTES: usize = 12;

    /// Of a reference of this node.
    pub(crate) fn of(reference: Term<'_>) -> Self {
        let format = external_format(reference);
        let (_, id) = format.split_last_chunk().expect("it has an identifier");
        Self(*id)
    }

    /// A part of the identifier: two requests rarely have the same.
    pub(crate) fn hash(self) -> u64 {
        // The numbers of consecutive references differ in the first bytes.
        let [hash @ .., _, _, _, _] = self.0;
        u64::from_be_bytes(hash)
    }

    /// The reference. The rest of its external format is taken from a new one, because the node can have got a name
    /// since.
    fn reference(self, call: CallEnv<'_>) -> Term<'_> {
        let mut format = external_format(call.env().make_ref().into());
        let (_, id) = format.split_last_chunk_mut().expect("it has an identifier");
        *id = self.0;
        let reference = call.env().binary_to_term(&format);
        reference.expect("only the identifier differs").0
    }
}

/// If there is no memory, the VM terminates, as for a message.
fn external_format(reference: Term<'_>) -> OwnedBinary {
    let format = enif::external_format(reference);
    format.unwrap_or_else(|OutOfMemory| handle_alloc_error(Layout::new::<RequestId>()))
}

/// The receiver, and the reference of the request. A copy of the reference itself would need an environment, of 2.5 KB.
pub(crate) struct Message {
    receiver: LocalPid,
    id: RequestId,
}

impl Message {
    /// A message to the calling process.
    pub(crate) fn new(call: CallEnv<'_>, id: RequestId) -> Self {
        let receiver = call.env().pid();
        Self { receiver, id }
    }

    /// Whether it is that of this request.
    pub(crate) fn is_of(&self, id: RequestId) -> bool {
        self.id == id
    }
}

impl Notice for Message {
    type Context<'a> = CallEnv<'a>;

    fn now_us() -> u64 {
        now_us()
    }

    fn send(self, call: CallEnv<'_>, end: WaitEnd) {
        let answer = match end {
            WaitEnd::Granted(in_use) => {
                let in_use = in_use.encode(call.env()).as_c_arg();
                enif::tuple(call, &[atoms::acquired().as_c_arg(), in_use])
            }
            WaitEnd::Closed => atoms::closed().as_c_arg(),
        };
        let reference = self.id.reference(call).as_c_arg();
        let message = [atoms::canal_lock().as_c_arg(), reference, answer];
        let message = call.term(enif::tuple(call, &message));
        // A process that is not alive gets nothing. If there is no memory, the VM terminates.
        let _ = call.env().send(&self.receiver, message);
    }
}
