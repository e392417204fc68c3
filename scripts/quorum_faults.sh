#!/usr/bin/env bash
# Quorum locks on nodes that things happen to: cut off from each other, in one direction too, stopped, killed, with
# clocks that jump, messages that come late, and processes that end; so many rounds of all of it, with the constants
# that clusters run with. A round takes about half an hour. Prints what was seen: test/support/test_quorum_faults.erl
# says what each fault is, and test/support/test_quorum_history.erl what is looked for.
#
#     scripts/quorum_faults.sh [ROUNDS]
#
# As root nodes get network namespaces (iproute2); otherwise they are cut off by proxies, and it says so.
set -euo pipefail
cd "$(dirname "$0")/.."

rebar3 as test compile
exec erl -noshell -pa _build/rebar3/test/lib/canal_lock/{ebin,test} \
  -run soak_quorum_faults main "${1:-1}" </dev/null
