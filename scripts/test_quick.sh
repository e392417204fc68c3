#!/usr/bin/env bash
# The tests for a small change. Those of Rust compute, and most of the others wait, so they run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

steps_begin quick 3
log=$(mktemp)
set -m # a process group, which the trap ends
step 'Rust' make test-rust >"$log" 2>&1 &
rust=$!
set +m
trap 'kill -- -$rust 2>/dev/null || true; rm -f "$log"; steps_end' EXIT
step 'Erlang' scripts/eunit.sh quick
step 'Elixir' mix test --warnings-as-errors test/permits
status=0
wait $rust || status=$?
cat "$log"
exit $status
