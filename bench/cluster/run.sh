#!/bin/sh
# Measures the quorum locks beside OTP's `global' on clusters of this machine:
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
erlc -o "$out" bench/*.erl bench/cluster/*.erl test/support/test_original.erl
# How nodes find each other without a daemon, and wait for each other.
erlc -o "$out" test/support/test_epmd.erl test/support/test_await.erl
# As bench/run.sh does.
erl -noinput +Bd +fnu -pa "$out" "$library" -s bench_cluster main -extra "$mode" "$out"
