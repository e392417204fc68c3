#!/bin/sh
# Builds and runs the benchmark, or compares the results of two runs:
#   bench/run.sh [full|quick]
#   bench/run.sh compare OLD.csv NEW.csv
set -eu
mode=${1:-full}
case "$mode $#" in
  'full '[01] | 'quick 1' | 'compare 3') ;;
  *) echo "usage: bench/run.sh [full|quick], or bench/run.sh compare OLD.csv NEW.csv" >&2; exit 2 ;;
esac
if [ "$mode" = compare ]; then
  # Resolved before cd.
  for file in "$2" "$3"; do
    [ -r "$file" ] || { echo "bench: cannot read $file" >&2; exit 1; }
  done
  old=$(realpath "$2")
  new=$(realpath "$3")
fi
cd "$(dirname "$0")/.."
out=_build/bench
library=_build/rebar3/default/lib/canal_lock/ebin
export ELIXIR_ERL_OPTIONS="${ELIXIR_ERL_OPTIONS:-+fnu}"

# +Bd: no break handler, which would prompt on Ctrl-C while the benchmark continues.
bench() {
  erl -noinput +Bd +fnu -pa "$out" "$library" -s bench main -extra "$@"
}

mkdir -p "$out"
erlc -o "$out" bench/*.erl test/support/test_original.erl
if [ "$mode" = compare ]; then
  bench compare "$old" "$new"
  exit
fi
rebar3 compile
escript native/build.escript --package bench_floor_nif "$out"
elixirc -pa "$library" -o "$out" lib/canal_lock.ex

# On a terminal, progress is updated in place.
if [ -t 1 ]; then output=terminal; else output=lines; fi
bench "$mode" "$out" "$output"

if ! command -v gnuplot >/dev/null; then
  echo "plots: skipped, because gnuplot is not installed"
else
  bench/plots.sh "$out/samples-$mode.csv" "$out"
fi
