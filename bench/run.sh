#!/usr/bin/env bash
# Builds and runs the programs of the benchmark, and draws their plots:
#   bench/run.sh all|permits|waiting|cluster|permits-cluster [full|quick [OTHER]]
# OTHER is the library of another build, which is measured beside this one: a folder named canal_lock with `ebin' and
# `priv'.
set -euo pipefail
programs=${1-}
mode=${2-full}
case "$programs $mode" in
  'all full' | 'all quick') programs='permits waiting cluster permits-cluster' ;;
  'permits full' | 'permits quick' | 'waiting full' | 'waiting quick' | 'cluster full' | 'cluster quick') ;;
  'permits-cluster full' | 'permits-cluster quick') ;;
  *) echo "usage: bench/run.sh all|permits|waiting|cluster|permits-cluster [full|quick [OTHER]]" >&2; exit 2 ;;
esac
other=
if [ -n "${3-}" ]; then
  other=$(realpath "$3")
  [ -d "$other/ebin" ] && [ -d "$other/priv" ] && [ "${other##*/}" = canal_lock ] ||
    { echo "bench: $3 must be a folder named canal_lock with ebin and priv" >&2; exit 1; }
fi
cd "$(dirname "$0")/.."
out=$PWD/_build/bench
library=$PWD/_build/rebar3/default/lib/canal_lock
export ELIXIR_ERL_OPTIONS="${ELIXIR_ERL_OPTIONS:-+fnu}"

rebar3 compile
mkdir -p "$out"
rm -f "$out"/*.beam
# The nodes of clusters, and waits for a state, come from the harness of the tests.
erlc -o "$out" bench/*.erl bench/*/*.erl test/support/test_original.erl test/support/harness/*.erl
case "$programs" in
  'permits' | 'permits '*)
    escript native/build.escript --package bench_floor_nif "$out"
    elixirc -pa "$library/ebin" -o "$out" lib/canal_lock.ex lib/canal_lock/options.ex
    ;;
esac

measure() { # PROGRAM
  # +Bd: no break handler, which would prompt on Ctrl-C while the benchmark continues.
  erl -noinput +Bd +fnu -pa "$out" "$library/ebin" -s bench main \
    -extra "$1" "$mode" "$out" "$library" ${other:+"$other"} &&
    bench/plots.sh "$out/$1-$mode.csv" "$out"
}

source scripts/steps.sh
steps_begin bench "$(wc -w <<<"$programs")"
for program in $programs; do step "$program" measure "$program"; done
