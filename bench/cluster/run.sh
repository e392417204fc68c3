#!/bin/sh
# Measures the quorum locks and OTP's `global' on clusters of this machine:
#   bench/cluster/run.sh [full|quick]
# and what clients cost the members:
#   bench/cluster/run.sh clients
set -eu
mode=${1:-full}
case "$mode $#" in
  'full '[01] | 'quick 1') module=bench_cluster ;;
  'clients 1') module=bench_cluster_clients ;;
  *) echo "usage: bench/cluster/run.sh [full|quick|clients]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
out=_build/bench
library=_build/rebar3/default/lib/canal_lock/ebin

rebar3 compile
mkdir -p "$out"
# The nodes come from the harness of the tests.
erlc -o "$out" bench/*.erl bench/cluster/*.erl test/support/test_original.erl test/support/harness/*.erl
# With the same flags as bench/run.sh.
erl -noinput +Bd +fnu -pa "$out" "$library" -s "$module" main -extra "$mode" "$out"
