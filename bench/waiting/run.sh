#!/bin/sh
# Measures waiting for permits beside a gen_server queue and poolboy:
#   bench/waiting/run.sh [full|quick]
set -eu
mode=${1:-full}
case "$mode $#" in
  'full '[01] | 'quick 1') ;;
  *) echo "usage: bench/waiting/run.sh [full|quick]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
out=_build/bench
library=_build/rebar3/default/lib/canal_lock/ebin

rebar3 compile
mkdir -p "$out"
# The histogram of waits comes from the benchmark of clusters.
erlc -o "$out" bench/*.erl bench/waiting/*.erl bench/cluster/bench_cluster_waits.erl

# With the same flags as bench/run.sh. On a terminal, progress is updated in place.
if [ -t 1 ]; then output=terminal; else output=lines; fi
erl -noinput +Bd +fnu -pa "$out" "$library" -s bench_waiting main -extra "$mode" "$out" "$output"

if ! command -v gnuplot >/dev/null; then
  echo "plots: skipped, because gnuplot is not installed"
else
  bench/plots.sh "$out/waiting-samples-$mode.csv" "$out"
fi
