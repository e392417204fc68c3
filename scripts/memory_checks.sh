#!/usr/bin/env bash
# Runs the tests of the table, where nearly all the unsafe code is, under what sees memory errors and undefined
# behaviour that happen to do no harm on this machine:
#
#   valgrind           use after free, use of what was never written, leaks; in the code as it is released
#   AddressSanitizer   use after free, out of bounds, leaks; fast, so with more rounds
#   Miri               undefined behaviour, data races, weak memory orders, leaks: the strictest and the slowest
#
# What this machine lacks is skipped, loudly. Without Miri it takes some minutes, nearly all of them cargo's.
#
# Not ThreadSanitizer: it understands neither fences nor membarrier(2), on which the epochs rest (epochs.rs), and does
# not link with a standard library that was built without it. Data races are seen by Miri and by tests/loom.
set -euo pipefail
cd "$(dirname "$0")/../native"
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
unset RUSTFLAGS MIRIFLAGS

host=$(rustc -vV | sed -n 's/^host: //p')
table=(--locked --package permit_table)
ran=()
skipped=()

skip() { # WHAT HOW-TO-GET-IT
  skipped+=("$1")
  printf '\n*** SKIPPED: %s. To have it: %s\n\n' "$1" "$2" >&2
}

under_valgrind() {
  if ! command -v valgrind >/dev/null; then
    skip valgrind 'scripts/setup.sh soak'
    return
  fi
  # The threads take turns, and some spin until another one has come: to each its turn. With a long stack it is known
  # where something comes from. The path is seen from where cargo runs tests, and has no space in it.
  local memcheck=(
    valgrind --quiet --error-exitcode=9 --leak-check=full --num-callers=40 --fair-sched=try
    --suppressions=../../scripts/valgrind.supp
  )
  local runner=${host//-/_}
  env "CARGO_TARGET_${runner^^}_RUNNER=${memcheck[*]}" CANAL_LOCK_SOAK=0.02 PROPTEST_CASES=16 \
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
  # A target that is named keeps the flags away from build scripts and macros, which have to run without.
  RUSTFLAGS=-Zsanitizer=address CANAL_LOCK_SOAK=${CANAL_LOCK_SOAK:-1} \
    cargo +nightly test "${table[@]}" --tests --target "$host" --target-dir ../_build/cargo-asan
  ran+=(AddressSanitizer)
}

under_miri() {
  if ! cargo +nightly miri --version >/dev/null 2>&1; then
    skip Miri 'rustup toolchain install nightly --component miri,rust-src'
    return
  fi
  # Without isolation, because proptest looks for a file of failures. Integers as pointers are parking_lot's, which
  # finds waiting threads by them. Tables and rounds are smaller with `cfg!(miri)`, and epochs use fences: Miri knows
  # no membarrier(2).
  local flags='-Zmiri-disable-isolation -Zmiri-permissive-provenance'
  local miri=(cargo +nightly miri test "${table[@]}" --target-dir ../_build/cargo-miri)
  MIRIFLAGS=$flags PROPTEST_CASES=2 "${miri[@]}" --lib --test promises
  # Each seed is another interleaving, and another choice of what a weak load may see.
  MIRIFLAGS="$flags -Zmiri-many-seeds=0..4" "${miri[@]}" --test storms --test linearizable
  ran+=(Miri)
}

under_valgrind
under_address_sanitizer
under_miri
[ ${#ran[@]} -gt 0 ] || { echo "memory checks: there is nothing to check with" >&2; exit 1; }
echo "memory checks passed: ${ran[*]}; skipped: ${skipped[*]:-none}"
