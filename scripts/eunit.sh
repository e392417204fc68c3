#!/usr/bin/env bash
# All EUnit and PropEr tests, those of the quorum locks beside the others: they mostly wait, for leases to end and for
# nodes to start, while the others keep the processors busy. What the first have said is shown when both are done.
#
# Both run what one `rebar3 as test compile` has built: `rebar3 eunit` compiles all of it once more, with options of its
# own, and would take modules away from whoever is running.
set -euo pipefail
cd "$(dirname "$0")/.."

rebar3 as test compile
# By what is in them: a module of another name may have tests, too.
with_tests() { grep -lE '^[a-z0-9_]+_test_?\(\) ->' test/*/*.erl examples/*/test/*.erl; }
mapfile -t modules < <(with_tests | xargs basename -s .erl -a | sort)
quorum=() others=()
for module in "${modules[@]}"; do
  case $module in
    *canal_lock_quorum_*) quorum+=("$module") ;;
    *) others+=("$module") ;;
  esac
done
[ ${#quorum[@]} -gt 0 ] && [ ${#others[@]} -gt 0 ]

run() {
  local list
  list=$(IFS=,; echo "$*")
  erl -noshell -pa _build/rebar3/test/lib/*/{ebin,test} -eval "
    case eunit:test([{module, Module} || Module <- [$list]], [verbose]) of
        ok -> halt(0);
        error -> halt(1)
    end." </dev/null
}

said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
run "${quorum[@]}" >"$said/quorum" 2>&1 &
status=0
run "${others[@]}" 2>&1 | tee "$said/others" || status=1
wait $! || status=1
cat "$said/quorum"

# What could not run here, as test_setup:skipped/2 has it. `make test' prints the file again, as its last lines.
skipped=_build/eunit-skipped.txt
sed -n 's/^ *SKIPPED: /  /p' "$said"/{quorum,others} >"$said/titles"
{ echo "eunit: skipped here: $(wc -l <"$said/titles")"; cat "$said/titles"; } | tee "$skipped"
exit $status
