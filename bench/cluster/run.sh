#!/bin/sh
# Measures the quorum locks and OTP's `global' on clusters of this machine:
#   bench/cluster/run.sh [full|quick]
set -eu
mode=${1:-full}
case "$mode $#" in
  'full '[01] | 'quick 1') ;;
  *) echo "usage: bench/cluster/run.sh [full|quick]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
out=_build/bench
library=_build/rebar3/default/lib/canal_lock/ebin

rebar3 compile
mkdir -p "$out"
# The nodes come from the harness of the tests.
erlc -o "$out" bench/*.erl bench/cluster/*.erl test/support/test_original.erl test/support/harness/*.erl
# With the same flags as bench/run.sh.
erl -noinput +Bd +fnu -pa "$out" "$library" -s bench_cluster main -extra "$mode" "$out"
