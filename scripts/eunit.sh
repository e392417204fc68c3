#!/usr/bin/env bash
# Runs the EUnit and PropEr suites, each in a VM of its own, several VMs side by side, because many suites mostly wait,
# for leases to expire and for nodes to start. The longest suites start first.
#
#   scripts/eunit.sh            all
#   scripts/eunit.sh quick      those of test/permits and of the API of the quorum locks; CANAL_LOCK_SOAK=0.1 for less
#   scripts/eunit.sh SUITE...   these
#
# The output of a suite is in _build/eunit/SUITE.log. Not by `rebar3 eunit', which compiles everything again, with other
# options, while tests run.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

# As many VMs for each core.
vms_per_core=2

# The suites that take longest, the longest first.
longest=(
  canal_lock_panics_tests
  canal_lock_quorum_views_tests
  canal_lock_quorum_clients_tests
  prop_canal_lock_model
  canal_lock_quorum_singleton_tests
  canal_lock_quorum_dsync_tests
  canal_lock_reload_tests
  canal_lock_halt_tests
  prop_canal_lock_keys
  canal_lock_quorum_under_faults_tests
  canal_lock_library_tests
  canal_lock_remote_storm_tests
  canal_lock_remote_timeout_tests
  canal_lock_quorum_life_tests
  canal_lock_cluster_faults_tests
  canal_lock_cluster_tests
  canal_lock_cluster_simulation_tests
  canal_lock_quorum_disk_tests
  canal_lock_view_storm_tests
  canal_lock_quorum_faulty_cluster_tests
  canal_lock_quorum_rolling_tests
  router_demo_tests
  canal_lock_quorum_unlock_failures_tests
  canal_lock_wait_storm_tests
  canal_lock_docs_tests
  canal_lock_three_shells_tests
  canal_lock_death_storm_tests
  canal_lock_keep_storm_tests
  canal_lock_memory_tests
  canal_lock_remote_tests
  canal_lock_quorum_fences_tests
)

# The names of the suites among these files: a module may have tests whatever its name is.
suites() { grep -lE '^[a-z0-9_]+_test_?\(\) ->' "$@" | xargs basename -s .erl -a | sort; }

case "${1-}" in
  '') chosen=$(suites test/*/*.erl examples/*/test/*.erl) ;;
  quick) chosen=$(suites test/permits/*.erl test/quorum/canal_lock_quorum_{,errors_}tests.erl) ;;
  *) chosen=$(printf '%s\n' "$@") ;;
esac

for suite in "${longest[@]}"; do
  [ -n "$(find test examples -name "$suite.erl")" ] || { echo "eunit: no suite $suite; see \`longest'" >&2; exit 2; }
done

# The state files of test nodes. A write to a disk took 0.45 s beside a build. A lock with a lease of one second can end
# if two such writes delay a change of the members.
[ ! -w /dev/shm ] || export CANAL_LOCK_TEST_DATA=/dev/shm

rebar3 as test compile
export logs=_build/eunit
rm -rf $logs
mkdir -p $logs

# One suite. Prints one line. EUnit's limit for a test, 5 s unless the test sets another, is short for a busy machine.
run() {
  local suite=$1 begun=$SECONDS status=0
  erl -noshell -pa _build/rebar3/test/lib/*/{ebin,test} -eval "
    case eunit:test($suite, [verbose, {scale_timeouts, 3}]) of
        ok -> halt(0);
        error -> halt(1)
    end." </dev/null >"$logs/$suite.log" 2>&1 || status=$?
  [ $status -eq 0 ] || echo "$suite" >>$logs/failed
  printf 'eunit: %4d s  %s%s\n' $((SECONDS - begun)) "$suite" "$([ $status -eq 0 ] || echo ': FAILED')"
}
export -f run

# The chosen suites, the longest first.
ordered() {
  local suite
  for suite in "${longest[@]}"; do
    ! grep -qxF "$suite" <<<"$chosen" || echo "$suite"
  done
  grep -vxF "$(printf '%s\n' "${longest[@]}")" <<<"$chosen" || true
}

ordered | xargs -P $((vms_per_core * $(nproc))) -I{} bash -euo pipefail -c 'run {}'

# From the last lines of EUnit.
awk '/^  (All )?[0-9]+ tests passed/ { passed += $(NF - 2) } /^  Test passed/ { passed += 1 }
     /^  Failed: [0-9]/ { failed += $2; passed += $NF }
     END { printf "eunit: %d tests passed, %d failed, in %d suites\n", passed, failed, ARGC - 1 }' $logs/*.log
# What test_stalls:again/1 repeated, with the reasons.
grep '^REPEATED: ' $logs/*.log | grep -v /test_stalls_tests | cut -c 1-500 || true
# The tests that test_setup:skipped/2 skipped on this machine. `make test' prints the file again as its last lines.
skipped=_build/eunit-skipped.txt
titles=$(sed -n 's/^ *SKIPPED: /  /p' $logs/*.log)
{
  echo "eunit: skipped on this machine: $(grep -c . <<<"$titles" || true)"
  [ -z "$titles" ] || echo "$titles"
} | tee $skipped

[ -e $logs/failed ] || exit 0
# The failed tests, or the last lines of a suite whose VM ended.
while read -r suite; do
  echo "eunit: $suite failed; its output is $logs/$suite.log. Its failures:"
  awk '/\*(failed|skipped|timed out)\*|^\*\*\*|^the (first that failed|shortest):/ { lines = 40 }
       lines > 0 { print; lines = /^ *(undefined)?$/ ? 0 : lines - 1 }' "$logs/$suite.log"
  tail -n 5 "$logs/$suite.log"
done <$logs/failed
exit 1
