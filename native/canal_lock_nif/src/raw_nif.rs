//! Raw NIF functions: they get the array of arguments of the VM, and make no list of them.

/// Registers a raw NIF, in addition to those of `#[rustler::nif]`.
macro_rules! raw_nif {
    ($name:literal, $arity:literal, $body:path) => {
        const _: () = {
            unsafe extern "C" fn entry(
                env: *mut rustler::sys::ErlNifEnv,
                _arity: std::ffi::c_int,
                arguments: *const $crate::enif::ErlNifTerm,
            ) -> $crate::enif::ErlNifTerm {
                // SAFETY: the VM passes the environment of the calling process, valid during the call.
                let call = unsafe { $crate::enif::CallEnv::new(env) };
                // SAFETY: the VM passes as many arguments as the function was registered for. They are read one by one
                // from the VM's array. A copy of all at once would read newly written words as one wide value, which
                // stalls the processor.
                let arguments = unsafe { &*arguments.cast::<[$crate::enif::ErlNifTerm; $arity]>() };
                let body = std::panic::AssertUnwindSafe(|| $body(call, arguments));
                std::panic::catch_unwind(body)
                    .unwrap_or_else(|_| $crate::error::CallError::Panicked.answer(call, arguments))
            }

            rustler::codegen_runtime::inventory::submit!(rustler::Nif {
                name: concat!($name, "\0").as_ptr() as *const std::ffi::c_char,
                arity: $arity,
                flags: 0,
                raw_func: entry,
            });
        };
    };
}
pub(crate) use raw_nif;
