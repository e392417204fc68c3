#!/usr/bin/env bash
# Runs cargo-mutants (https://mutants.rs) on native/permit_table: it replaces an operator, empties a function, deletes
# an arm of a match, and so on. Each mutant is built and tested alone, and a test has to fail. A mutant that survives
# shows a missing test, unneeded code, or a harmless change: then native/permit_table/tests/mutants.txt must list it,
# with the reason. A mutant that is listed there must exist, and survive if it was tested.
#
# Memory orderings are not mutated, because the models test them; neither are the replacements for loom.
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
explained=native/permit_table/tests/mutants.txt
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

# Without folder, lines and columns, which every change of the sources moves.
without_lines() { sed -E 's/^permit_table\/src\/([^:]*):[0-9]+:[0-9]+:/\1:/' | sort; }
without_lines <"$work/mutants.out/missed.txt" >"$work/survived"
cat "$work/mutants.out"/{caught,timeout,unviable}.txt | without_lines >"$work/died"
# Those that survive or were not tested.
comm -23 <(cd native && cargo mutants --package permit_table --list | without_lines) "$work/died" >"$work/left"
sed '/^#/d; /^$/d' "$explained" | sort >"$work/explained"

unexplained=$(comm -23 "$work/survived" "$work/explained")
stale=$(comm -13 "$work/left" "$work/explained")
if [ -n "$unexplained" ]; then
  echo "mutants: these survive, and $explained does not explain them (lines: $work/mutants.out/missed.txt):"
  printf '%s\n' "$unexplained"
fi >&2
if [ -n "$stale" ]; then
  echo "mutants: $explained explains these, but they do not survive or do not exist:"
  printf '%s\n' "$stale"
fi >&2
[ -z "$unexplained$stale" ] || exit 1
count() { cat "$work/mutants.out/$1.txt" | wc -l; }
echo "covered: mutants (${sample[*]:-all}): $(count caught) caught, $(count timeout) timed out," \
  "$(count unviable) did not build, $(count missed) survived and are explained"
