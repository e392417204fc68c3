#!/usr/bin/env bash
# All tests. Those of Rust compute all the time, and most of the others wait. So the tests of Rust run beside the
# others, but only while a core is idle: the others do not become slower. Their output follows at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

idle=(nice -n 19)
if chrt --idle 0 true 2>/dev/null; then idle=(chrt --idle 0); fi

make test-build
# Before the others start, because cargo waits while another cargo builds in the same folder.
make test-rust cargo_test=--no-run

log=$(mktemp)
set -m # a process group, which the trap ends
"${idle[@]}" make test-rust test-loom >"$log" 2>&1 &
rust=$!
set +m
trap 'kill -- -$rust 2>/dev/null || true; rm -f "$log"' EXIT
make test-erlang test-elixir test-downstream
status=0
wait $rust || status=$?
cat "$log"
cat _build/eunit-skipped.txt
exit $status
