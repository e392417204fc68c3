#!/usr/bin/env bash
# Runs the tests of the table, which has nearly all the unsafe code, under tools that detect memory errors and undefined
# behavior:
#
#   valgrind           use after free, uninitialized memory, leaks; in a release build
#   AddressSanitizer   use after free, out of bounds, leaks; fast, so with more rounds
#   Miri               undefined behavior, data races, weak memory orders, leaks; strict and slow
#
# It skips the tools that this machine lacks and reports that. Without Miri it takes about four minutes, mostly for
# builds.
#
# ThreadSanitizer is not used: it supports neither fences nor membarrier(2), which epochs.rs needs, and requires a
# standard library built for it. Miri and tests/loom detect data races.
set -euo pipefail
cd "$(dirname "$0")/../native"
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
unset RUSTFLAGS MIRIFLAGS

host=$(rustc -vV | sed -n 's/^host: //p')
table=(--locked --package permit_table)
ran=()
skipped=()

skip() { # TOOL HOW-TO-INSTALL-IT
  skipped+=("$1")
  printf '\n*** SKIPPED: %s. To install it: %s\n\n' "$1" "$2" >&2
}

under_valgrind() {
  if ! command -v valgrind >/dev/null; then
    skip valgrind 'scripts/setup.sh soak'
    return
  fi
  # Fair scheduling, because some threads spin until another one has arrived. The path is relative to the folder where
  # cargo runs tests, so it contains no space.
  local memcheck=(
    valgrind --quiet --error-exitcode=9 --leak-check=full --num-callers=40 --fair-sched=try
    --suppressions=../../scripts/valgrind.supp
  )
  local runner=${host//-/_}
  env "CARGO_TARGET_${runner^^}_RUNNER=${memcheck[*]}" CANAL_LOCK_SOAK=0.02 PROPTEST_CASES=16 \
    CARGO_PROFILE_RELEASE_{DEBUG=line-tables-only,STRIP=none} \
    cargo test --release "${table[@]}" --tests
  ran+=(valgrind)
}

under_address_sanitizer() {
  local libraries
  libraries=$(rustc +nightly --print target-libdir 2>/dev/null) || true
  if ! compgen -G "$libraries/librustc*rt.asan*" >/dev/null; then
    skip AddressSanitizer 'rustup toolchain install nightly (on Linux or macOS)'
    return
  fi
  # With an explicit target, the flags do not apply to build scripts and macros, which must run without them.
  RUSTFLAGS=-Zsanitizer=address CANAL_LOCK_SOAK=${CANAL_LOCK_SOAK:-1} \
    cargo +nightly test "${table[@]}" --tests --target "$host" --target-dir ../_build/cargo-asan
  ran+=(AddressSanitizer)
}

under_miri() {
  if ! cargo +nightly miri --version >/dev/null 2>&1; then
    skip Miri 'rustup toolchain install nightly --component miri,rust-src'
    return
  fi
  # Without isolation, because proptest reads a file of failures. parking_lot uses integers as pointers. `cfg!(miri)`
  # makes tables and rounds smaller, and epochs use fences, because Miri does not support membarrier(2).
  local flags='-Zmiri-disable-isolation -Zmiri-permissive-provenance'
  local miri=(cargo +nightly miri test "${table[@]}" --target-dir ../_build/cargo-miri)
  MIRIFLAGS=$flags PROPTEST_CASES=2 "${miri[@]}" --lib --test all -- \
    --skip storms:: --skip linearizable::
  # Each seed selects other interleavings and other values for weak loads.
  MIRIFLAGS="$flags -Zmiri-many-seeds=0..4" "${miri[@]}" --test all -- storms:: linearizable::
  ran+=(Miri)
}

under_valgrind
under_address_sanitizer
under_miri
[ ${#ran[@]} -gt 0 ] || { echo "memory checks: none of the tools is installed" >&2; exit 1; }
echo "covered: the tests of permit_table under ${ran[*]}; skipped: ${skipped[*]:-none}"
