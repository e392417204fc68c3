#!/usr/bin/env bash
# Runs clients of quorum locks on nodes with faults, with the default rules: nodes are cut off from each other, also in
# one direction only, suspended and killed, clocks jump, messages are late, and processes die. A round takes about half
# an hour. Prints a description of each fault. test/support/test_quorum_faults.erl has the faults, and
# test/support/harness/test_quorum_history.erl the checks.
#
#     scripts/quorum_faults.sh [ROUNDS]
#
# As root, nodes run in network namespaces (iproute2). Otherwise proxies cut them off, and the output says so.
set -euo pipefail
cd "$(dirname "$0")/.."

rebar3 as test compile
exec erl -noshell -pa _build/rebar3/test/lib/canal_lock/{ebin,test} \
  -run soak_quorum_faults main "${1:-1}" </dev/null
