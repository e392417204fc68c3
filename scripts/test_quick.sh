#!/usr/bin/env bash
# The tests for a small change. Those of Rust compute, and most of the others wait, so they run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

steps_begin quick 3
beside rust step 'Rust' make test-rust
step 'Erlang' scripts/eunit.sh quick
step 'Elixir' mix test --warnings-as-errors test/permits
result rust
