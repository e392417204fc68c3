#!/usr/bin/env bash
# Runs the EUnit and PropEr tests.
#
#   scripts/eunit.sh         all: the suites of the quorum locks beside the others, because they mostly wait, for
#                            leases to expire and for nodes to start. Their output follows that of the others
#   scripts/eunit.sh quick   those of test/permits and of the API of the quorum locks; CANAL_LOCK_SOAK=0.1 for less
#
# Not by `rebar3 eunit', which compiles everything again, with other options, while tests run.
set -euo pipefail
cd "$(dirname "$0")/.."

rebar3 as test compile
# The names of the suites among these files: a module may have tests whatever its name is.
suites() { grep -lE '^[a-z0-9_]+_test_?\(\) ->' "$@" | xargs basename -s .erl -a | sort; }
case "${1-}" in
  '')
    mapfile -t beside < <(suites test/quorum/*.erl)
    mapfile -t others < <(suites test/[!q]*/*.erl examples/*/test/*.erl)
    ;;
  quick)
    mapfile -t beside < <(suites test/quorum/canal_lock_quorum_{,errors_}tests.erl)
    mapfile -t others < <(suites test/permits/*.erl)
    ;;
  *) echo "usage: scripts/eunit.sh [quick]" >&2; exit 2 ;;
esac
[ ${#beside[@]} -gt 0 ] && [ ${#others[@]} -gt 0 ]

run() {
  local list
  list=$(IFS=,; echo "$*")
  erl -noshell -pa _build/rebar3/test/lib/*/{ebin,test} -eval "
    case eunit:test([{module, Module} || Module <- [$list]], [verbose]) of
        ok -> halt(0);
        error -> halt(1)
    end." </dev/null
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run "${beside[@]}" >"$logs/beside" 2>&1 &
status=0
run "${others[@]}" 2>&1 | tee "$logs/others" || status=1
wait $! || status=1
cat "$logs/beside"

# The tests that test_setup:skipped/2 skipped on this machine. `make test' prints the file again as its last lines.
skipped=_build/eunit-skipped.txt
sed -n 's/^ *SKIPPED: /  /p' "$logs"/{beside,others} >"$logs/titles"
{ echo "eunit: skipped on this machine: $(wc -l <"$logs/titles")"; cat "$logs/titles"; } | tee "$skipped"
exit $status
