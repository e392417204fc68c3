#!/bin/sh
# Builds what the benchmark needs and runs it, or compares what two runs have found:
#   bench/run.sh [full|quick]
#   bench/run.sh compare OLD.csv NEW.csv
set -eu
cd "$(dirname "$0")/.."
out=_build/bench
library=_build/rebar3/default/lib/canal_lock/ebin
mode=${1:-full}
export ELIXIR_ERL_OPTIONS="${ELIXIR_ERL_OPTIONS:-+fnu}"

bench() {
  erl -noinput +fnu -pa "$out" "$library" -s bench main -extra "$@"
}

rebar3 compile
mkdir -p "$out"
escript native/build.escript --package bench_floor_nif "$out"
elixirc -pa "$library" -o "$out" lib/canal_lock.ex
erlc -o "$out" bench/*.erl test/canal_lock_ets.erl
if [ "$mode" = compare ]; then
  bench "$@"
  exit
fi

# On a terminal the progress is shown in place.
if [ -t 1 ]; then output=terminal; else output=lines; fi
bench "$mode" "$out" "$output"

if ! command -v gnuplot >/dev/null; then
  echo "plots: none, for there is no gnuplot"
else
  bench/plots.sh "$out/samples-$mode.csv" "$out"
fi
