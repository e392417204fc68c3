#!/bin/sh
# Measures the quorum locks and OTP's `global' on clusters of this machine:
#   bench/cluster/run.sh [full|quick]
# what clients cost the members:
#   bench/cluster/run.sh clients
# and this build beside another one, whose folder has `ebin' and `priv':
#   bench/cluster/run.sh builds FOLDER
set -eu
mode=${1:-full}
other=
case "$mode $#" in
  'full '[01] | 'quick 1') module=bench_cluster ;;
  'clients 1') module=bench_cluster_clients ;;
  'builds 2') module=bench_cluster_builds ;;
  *) echo "usage: bench/cluster/run.sh [full|quick|clients|builds FOLDER]" >&2; exit 2 ;;
esac
if [ "$mode" = builds ]; then other=$(realpath "$2"); fi
cd "$(dirname "$0")/../.."
out=_build/bench
library=_build/rebar3/default/lib/canal_lock/ebin

rebar3 compile
mkdir -p "$out"
# The nodes come from the harness of the tests.
erlc -o "$out" bench/*.erl bench/cluster/*.erl test/support/test_original.erl test/support/harness/*.erl
# With the same flags as bench/run.sh.
erl -noinput +Bd +fnu -pa "$out" "$library" -s "$module" main -extra "$mode" "$out" ${other:+"$other"}
