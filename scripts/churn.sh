#!/usr/bin/env bash
# Looks for leaks: uses the library in all ways for an hour, or so many MINUTES, and fails if its memory grows, or if
# anything is left in the end. A line each minute says how it goes.
#
#     scripts/churn.sh [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/.."

rebar3 as test compile
exec erl -noshell -pa _build/rebar3/test/lib/canal_lock/{ebin,test} -run soak_churn main "${1:-60}" </dev/null
