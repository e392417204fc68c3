#!/usr/bin/env bash
# Runs the EUnit and PropEr tests.
#
#   scripts/eunit.sh         all, in three VMs side by side, because many suites mostly wait, for leases to expire and
#                            for nodes to start. The output of the first VM is shown live, that of the others follows
#   scripts/eunit.sh quick   those of test/permits and of the API of the quorum locks; CANAL_LOCK_SOAK=0.1 for less
#
# Not by `rebar3 eunit', which compiles everything again, with other options, while tests run.
set -euo pipefail
shopt -s extglob
cd "$(dirname "$0")/.."

rebar3 as test compile
# The names of the suites among these files: a module may have tests whatever its name is.
suites() { grep -lE '^[a-z0-9_]+_test_?\(\) ->' "$@" | xargs basename -s .erl -a | sort; }
case "${1-}" in
  '')
    # The groups take about the same time.
    groups=(
      "$(suites test/permits/*.erl test/quorum/*_{dsync,busy}_tests.erl)"
      "$(suites test/quorum/!(*_dsync_tests|*_busy_tests|*_clients_tests).erl)"
      "$(suites test/!(permits|quorum)/*.erl examples/*/test/*.erl test/quorum/*_clients_tests.erl)"
    )
    ;;
  quick)
    groups=(
      "$(suites test/permits/*.erl)"
      "$(suites test/quorum/canal_lock_quorum_{,errors_}tests.erl)"
    )
    ;;
  *) echo "usage: scripts/eunit.sh [quick]" >&2; exit 2 ;;
esac

run() {
  local modules=${1:?no suites}
  modules=${modules//$'\n'/,}
  erl -noshell -pa _build/rebar3/test/lib/*/{ebin,test} -eval "
    case eunit:test([{module, Module} || Module <- [$modules]], [verbose]) of
        ok -> halt(0);
        error -> halt(1)
    end." </dev/null 2>&1
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0
beside=()
for ((group = 1; group < ${#groups[@]}; group++)); do
  run "${groups[group]}" >"$logs/$group" &
  beside+=($!)
done
run "${groups[0]}" | tee "$logs/0" || status=1
for pid in "${beside[@]}"; do
  wait "$pid" || status=1
done
cat "$logs"/[1-9]

# The tests that test_setup:skipped/2 skipped on this machine. `make test' prints the file again as its last lines.
skipped=_build/eunit-skipped.txt
sed -n 's/^ *SKIPPED: /  /p' "$logs"/[0-9] >"$logs/titles"
{ echo "eunit: skipped on this machine: $(wc -l <"$logs/titles")"; cat "$logs/titles"; } | tee "$skipped"

# Each failure again, up to the line that ends its report: above, thousands of lines can follow it.
if ((status != 0)); then
  echo 'eunit: the failures again:'
  awk 'FNR == 1 { lines = 0 }
       /\*(failed|skipped|timed out)\*|^\*\*\*/ { lines = 40 }
       lines > 0 { print; lines = /^ *(undefined)?$/ ? 0 : lines - 1 }' "$logs"/[0-9]
  tail -n 3 "$logs"/[0-9]
fi
exit $status
