#!/usr/bin/env bash
# Runs cargo-mutants on native/permit_table: it changes one small thing at a time, and a test has to fail. A mutant that
# survives must be in the table of docs/mutants.md, with the reason; and those in the table must survive.
#
#   scripts/mutants.sh                          all, which takes about four hours on two cores
#   scripts/mutants.sh --minutes N [--seed S]   a sample that takes about N minutes
#   scripts/mutants.sh OPTION...                with these options of cargo-mutants, such as --file keys.rs
set -euo pipefail
cd "$(dirname "$0")/.."

version=27.1.0
tools=$PWD/_build/tools
# Copies of the sources with their builds, and the results.
work=$PWD/_build/mutants
explained=docs/mutants.md
# On two cores. A mutant takes 5 to 30 s.
all_minutes=240
export PATH="$tools/bin:$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

if [ "$(cargo mutants --version 2>/dev/null)" != "cargo-mutants $version" ]; then
  echo "mutants: installing cargo-mutants $version in $tools"
  cargo install --quiet --locked --root "$tools" --version "$version" cargo-mutants
fi

sample=("$@")
if [ "${1-}" = --minutes ]; then
  shards=$(((all_minutes + $2 - 1) / $2))
  sample=()
  if [ "$shards" -gt 1 ]; then sample=(--sharding round-robin --shard "$((${4:-$RANDOM} % shards))/$shards"); fi
fi

mkdir -p "$work/copies"
export TMPDIR=$work/copies
# A failure is enough: no backtrace, no smallest case.
export RUST_BACKTRACE=0 PROPTEST_MAX_SHRINK_ITERS=0
# A mutant may allocate without end. The compiler and the tests need less than 16 GiB of addresses.
ulimit -v $((16 << 20))

status=0
(cd native && cargo mutants --package permit_table --output "$work" "${sample[@]}") || status=$?
# 2: some survived. 3: some timed out, which counts as caught.
case $status in
  0 | 2 | 3) ;;
  *) exit "$status" ;;
esac

# Without lines and columns, which every change of the sources moves.
sed -E 's/^([^:]*):[0-9]+:[0-9]+:/\1:/' "$work/mutants.out/missed.txt" | sort >"$work/survived"
# The first column of the table, where bars are escaped.
sed -nE 's/^\| `(permit_table\/.*)` \| .*/\1/p' "$explained" | sed 's/\\|/|/g' | sort >"$work/explained"

unexplained=$(comm -23 "$work/survived" "$work/explained")
stale=$(comm -13 "$work/survived" "$work/explained")
if [ -n "$unexplained" ]; then
  echo "mutants: these survive, and $explained does not explain them (lines: $work/mutants.out/missed.txt):"
  printf '%s\n' "$unexplained"
fi >&2
if [ ${#sample[@]} -gt 0 ]; then
  stale=
elif [ -n "$stale" ]; then
  echo "mutants: $explained explains these, but they do not survive, or do not exist:"
  printf '%s\n' "$stale"
fi >&2
[ -z "$unexplained$stale" ] || exit 1
count() { cat "$work/mutants.out/$1.txt" | wc -l; }
echo "covered: mutants (${sample[*]:-all}): $(count caught) caught, $(count timeout) timed out," \
  "$(count unviable) did not build, $(count missed) survived and are explained"
