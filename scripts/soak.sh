#!/usr/bin/env bash
# The long tests, within a budget. Each part prints what it covered, and a table at the end repeats that.
#
#   scripts/soak.sh [MINUTES] [PART]     MINUTES: 60 by default, split among the parts; or all of them for one PART
#
# Random choices follow from SEED, which is printed and can be set in the environment. A part completes its first round
# even if that takes longer than its share. The exit status is 1 if a part failed.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

# PART:SHARE, in percent of the budget. The last column of the table in docs/proof.md shows which part runs which test.
parts=(memory:8 nif_memory:3 seeded:3 rust:9 machines:14 fuzz:4 nodes:20 erlang:13 mutants:13 leaks:9 distro:4)
budget=${1:-60}
only=${2-}
seed=${SEED:-$(date +%s)}
export RUST_BACKTRACE=1
tests=_build/rebar3/test/lib/canal_lock

[[ $budget =~ ^[1-9][0-9]*$ ]] || { echo "soak: MINUTES must be a positive integer, got: $budget" >&2; exit 2; }
if [ -n "$only" ]; then
  [[ " ${parts[*]%%:*} " = *" $only "* ]] || { echo "soak: PART must be one of: ${parts[*]%%:*}" >&2; exit 2; }
  parts=("$only:100")
fi

covered() { echo "covered: $*"; }
# Whether the part that started at $started has used up its share.
time_is_up() { [ $((SECONDS - started)) -ge "$seconds" ]; }
minutes() { echo $(((seconds + 59) / 60)); }

# Unsafe code of the table under valgrind, AddressSanitizer and Miri.
memory() { scripts/memory_checks.sh; }

# The native library in a VM, under valgrind.
nif_memory() { scripts/valgrind_nif.sh; }

# The bugs that patches add to a copy of permit_table, which its models must find.
seeded() { scripts/seeded.sh; }

# The Rust tests in release mode, with new random cases in each round.
rust() {
  local rounds=0
  until [ $rounds -gt 0 ] && time_is_up; do
    (cd native && CANAL_LOCK_SOAK=2 PROPTEST_CASES=1024 \
      cargo test --quiet --release --locked --package permit_table --package quorum)
    rounds=$((rounds + 1))
  done
  covered "$rounds rounds of the tests of permit_table and quorum, each of 1,024 random cases"
}

# The state machines of the quorum locks: the tests that `make test' ignores, random histories, the models
# breadth-first, and random walks.
machines() {
  (cd native && cargo test --quiet --locked --package quorum_check -- --ignored)
  local each=$((($(minutes) + 3) / 4))
  check() { (cd native && cargo run --quiet --release --locked --package quorum_check --bin "$@" --minutes "$each"); }
  check simulate -- --from "${seed}000000"
  check simulate -- --long --from "${seed}000000"
  check explore --
  check explore -- --walk
  covered "simulation, simulation of several leases, search, walks: $each minutes each, counts above"
}

# Decoding of frames, by libFuzzer. Inputs that fail go to _build/fuzz.
fuzz() {
  local found=$PWD/_build/fuzz
  mkdir -p "$found/seen"
  (cd native/quorum/fuzz && cargo run --quiet --release --locked --target-dir "$found/target" -- "$found/seen" \
    -seed="$seed" -artifact_prefix="$found/" -max_len=20000 -max_total_time="$seconds" -print_final_stats=1)
  covered "frames for $seconds seconds, $(find "$found/seen" -type f | wc -l) inputs in the corpus"
}

# Quorum locks on nodes that are disconnected, suspended, killed, delayed, and whose clocks jump. As root, nodes get
# network namespaces; otherwise proxies disconnect them.
nodes() { erl -noshell -pa $tests/{ebin,test} -run soak_quorum_faults main "$(minutes)" "$seed" </dev/null; }

# The EUnit and PropEr suites in random order, each with three times as many rounds.
erlang() {
  local suites suite count=0
  mapfile -t suites < <(grep -lE '^[a-z0-9_]+_test_?\(\) ->' test/*/*.erl | xargs basename -s .erl -a |
    shuf --random-source=<(yes "$seed"))
  for suite in "${suites[@]}"; do
    if time_is_up; then break; fi
    CANAL_LOCK_SOAK=3 erl -noshell -pa _build/rebar3/test/lib/*/{ebin,test} -eval "
      halt(case eunit:test($suite) of ok -> 0; error -> 1 end)." </dev/null || { echo "failed: $suite"; return 1; }
    count=$((count + 1))
  done
  covered "$count of ${#suites[@]} suites, each with three times as many rounds"
}

# Mutants of permit_table, which its tests must catch.
mutants() { scripts/mutants.sh --minutes "$(minutes)" --seed "$seed"; }

# All calls under load, on nodes whose memory is watched.
leaks() { erl -noshell -pa $tests/{ebin,test} -run soak_churn main "$(minutes)" </dev/null; }

# The OTP, Elixir and Rust between the oldest and the newest, which CI runs.
distro() {
  scripts/distro.sh trixie make test WHAT=quick
  covered "the quick tests on Debian trixie"
}

echo "soak: $budget minutes, SEED=$seed"
rebar3 as test compile
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
summary=()
for entry in "${parts[@]}"; do
  part=${entry%:*}
  seconds=$((60 * budget * ${entry#*:} / 100))
  started=$SECONDS
  echo "soak: step $((${#summary[@]} + 1)) of ${#parts[@]}: $part, $seconds seconds"
  # Not in a condition, where bash ignores failures inside of a function.
  set +e
  (set -e; "$part") 2>&1 | tee "$log"
  failed=${PIPESTATUS[0]}
  set -e
  if [ "$failed" -eq 0 ]; then result=passed; else result=FAILED status=1; fi
  summary+=("$(printf '%6d s  %-10s  %-6s  %s' $((SECONDS - started)) "$part" $result \
    "$(sed -n 's/^covered: //p' "$log" | tail -n 1)")")
done
echo "soak: SEED=$seed; what each part took and covered:"
printf '%s\n' "${summary[@]}" | sort -rn
exit $status
