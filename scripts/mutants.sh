#!/usr/bin/env bash
# Breaks native/permit_table in every small way that cargo-mutants knows, one at a time, and sees whether its tests
# notice. What survives must be in the table of docs/mutants.md, with the reason; and what is there must survive.
# Takes about an hour on a machine that does nothing else. With arguments, which go to cargo-mutants (such as
# --file keys.rs), only a part is looked at.
set -euo pipefail
cd "$(dirname "$0")/.."

version=27.1.0
tools=$PWD/_build/tools
# Copies of the sources and what is built of them; then what came out.
work=$PWD/_build/mutants
explained=docs/mutants.md
export PATH="$tools/bin:$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

if [ "$(cargo mutants --version 2>/dev/null)" != "cargo-mutants $version" ]; then
  echo "mutants: installing cargo-mutants $version into $tools"
  cargo install --quiet --locked --root "$tools" --version "$version" cargo-mutants
fi

mkdir -p "$work/copies"
export TMPDIR=$work/copies
# That a test fails is all that is asked for: neither where, nor for which smallest case.
export RUST_BACKTRACE=0 PROPTEST_MAX_SHRINK_ITERS=0
# A mutant may ask for more and more memory: 16 GiB of addresses are plenty for the compiler and the tests.
ulimit -v $((16 << 20))

status=0
(cd native && cargo mutants --package permit_table --output "$work" "$@") || status=$?
# 2: some survived. 3: some were ended because they took too long, which is as good as caught.
case $status in
  0 | 2 | 3) ;;
  *) exit "$status" ;;
esac

# Lines and columns move with every change of the sources, so they are left out.
sed -E 's/^([^:]*):[0-9]+:[0-9]+:/\1:/' "$work/mutants.out/missed.txt" | sort >"$work/survived"
# The first column of the table, whose bars are escaped.
sed -nE 's/^\| `(permit_table\/.*)` \| .*/\1/p' "$explained" | sed 's/\\|/|/g' | sort >"$work/explained"

unexplained=$(comm -23 "$work/survived" "$work/explained")
stale=$(comm -13 "$work/survived" "$work/explained")
if [ -n "$unexplained" ]; then
  echo "mutants: these survive, and $explained does not say why (lines: $work/mutants.out/missed.txt):"
  printf '%s\n' "$unexplained"
fi
if [ $# -gt 0 ]; then
  stale=
elif [ -n "$stale" ]; then
  echo "mutants: $explained says why these survive, but they do not, or are no more:"
  printf '%s\n' "$stale"
fi >&2
[ -z "$unexplained$stale" ] || exit 1
echo "mutants: whatever survives is explained"
