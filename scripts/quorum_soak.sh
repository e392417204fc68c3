#!/usr/bin/env bash
# The machines of the quorum locks, for so many minutes each: histories, models, random walks through models, and
# frames of a fuzzer. Whatever fails prints the command that shows it again. docs/quorum.md says what is looked for.
set -euo pipefail
cd "$(dirname "$0")/../native"

minutes=${1:-10}
cargo run --quiet --release --locked --package quorum_check --bin simulate -- --minutes "$minutes" \
  --from "$(date +%s)000000"
cargo run --quiet --release --locked --package quorum_check --bin explore -- --minutes "$minutes"
cargo run --quiet --release --locked --package quorum_check --bin explore -- --walk --minutes "$minutes"

# What the fuzzer finds goes to _build/fuzz.
found=$PWD/../_build/fuzz
mkdir -p "$found/seen"
cd quorum/fuzz
cargo run --quiet --release --locked --target-dir ../../../_build/fuzz/target -- "$found/seen" \
  -artifact_prefix="$found/" -max_len=20000 -max_total_time=$((60 * minutes))
