#!/usr/bin/env bash
# All tests. Those of Rust compute all the time, and most of the others wait. So the tests of Rust are built and run
# beside the others, but only while a core is idle: the others do not become slower. Their output follows at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

# What these tests depend on.
cargo=(native/Cargo.toml native/Cargo.lock native/.cargo Makefile)
quorum=(native/quorum native/quorum_check "${cargo[@]}")
loom=(native/permit_table native/quorum "${cargo[@]}")
downstream=(src lib native test/packaging scripts checksum.term rebar.config rebar.lock mix.exs)

steps_begin test 8

rust() {
  renice -n 19 $BASHPID
  chrt --idle --pid 0 $BASHPID || true
  step 'build of the Rust tests' make test-rust test-searches cargo_test=--no-run
  step 'Rust' make test-rust
  step 'model checker and simulation' scripts/once searches "${quorum[@]}" -- make test-searches
  step 'loom' scripts/once loom "${loom[@]}" -- make test-loom
}
beside rust rust
step 'build' make test-build
step 'Erlang' make test-erlang
step 'Elixir' make test-elixir
step 'projects that depend on the library' scripts/once downstream "${downstream[@]}" -- make test-downstream
status=0
result rust || status=$?
cat _build/eunit-skipped.txt
exit $status
