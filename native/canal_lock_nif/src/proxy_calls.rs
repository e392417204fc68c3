//! The NIFs of proxies.

use crate::incarnation::with_table;
use crate::{caller::Caller, enif::CallEnv};
use rustler::{Env, NifResult, Term};

mod atoms {
    rustler::atoms! { none, ok }
}

/// `represent(Pid) -> ok | Proxy`: makes the caller the proxy of a process on another node, or returns the live proxy
/// of that process.
#[rustler::nif]
fn represent<'a>(env: Env<'a>, holder: Term<'a>) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let other = with_table(call, holder, |open, _, holder| {
        open.proxies
            .represent(call, holder, || open.watch_proxy(call))
    })?;
    Ok(call.term(other.map_or(atoms::ok().as_c_arg(), Caller::pid)))
}

/// `proxy_of(Pid) -> Proxy | none`
#[rustler::nif]
fn proxy_of<'a>(env: Env<'a>, holder: Term<'a>) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let proxy = with_table(call, holder, |open, _, holder| {
        Ok(open.proxies.proxy(holder))
    })?;
    Ok(call.term(proxy.map_or(atoms::none().as_c_arg(), Caller::pid)))
}
