#!/bin/sh
# Builds what the benchmark needs and runs it: bench/run.sh [full|quick]
set -eu
cd "$(dirname "$0")/.."
out=_build/bench

rebar3 compile
mkdir -p "$out"
escript native/build.escript --package bench_floor_nif "$out"
erlc -o "$out" bench/*.erl test/canal_lock_ets.erl
exec erl -noinput -pa "$out" _build/rebar3/default/lib/canal_lock/ebin -s bench main -extra "$out" "${1:-full}"
