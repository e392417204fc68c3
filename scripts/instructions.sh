#!/usr/bin/env bash
# Counts the instructions of native calls and compares them with scripts/instructions.txt. Also counts those that lock a
# cache line (a compare-and-swap, a fence): each of these costs as much as dozens of others. On shared machines, times
# vary too much to show that a call became slower. These counts are the same in each run.
#
#   scripts/instructions.sh            fails if a call takes more or fewer instructions than the file says
#   scripts/instructions.sh --update   writes the file
#
# The counts do not include waiting for memory or for another core: `make bench' measures that.
#
# valgrind's callgrind counts, in a release build, an acquire and a release of each kind of key, and a refused acquire:
# the native functions and what they call in the VM, without the Erlang functions and the VM's call of a native
# function. bench/permits/bench_instructions.erl makes the calls.
#
# Another compiler generates other code, and another VM has other functions. The file names the versions that it was
# written with. With other versions, only a large difference fails.
#
# Not by gungraun (formerly iai-callgrind): it compares either with the previous run, which a clean checkout lacks, or
# with limits that only an increase exceeds, and it requires a separate program of the same version.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
# They change the generated code.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

file=scripts/instructions.txt
# Calls of each row. Few are enough: all calls of a row take the same number of instructions.
calls=1000
# Largest difference that passes, in percent of the recorded count. Reordering the same code can change it that much.
max_percent=5
# The same if the compiler or the VM differs from the recorded one.
max_percent_other_version=15
# A difference of at most this many instructions always passes.
max_instructions=4
# Largest difference that passes in locking instructions. Below 1, and above 0 because some counts are averages.
max_locking=0.5

case "$*" in
  '') update= ;;
  --update) update=yes ;;
  *) echo "usage: scripts/instructions.sh [--update]" >&2; exit 2 ;;
esac
if [ "$(uname -sm)" != 'Linux x86_64' ]; then
  echo "instructions: SKIPPED: the numbers are for Linux on x86-64, and this is $(uname -sm)" >&2
  exit 0
fi

fail() { echo "instructions: $*" >&2; exit 1; }

command -v valgrind >/dev/null || fail "valgrind is missing; install it with: make setup"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the version of the VM, then a line for each row of bench_instructions.
count() {
  rebar3 compile >"$work/log" 2>&1 || fail "$(cat "$work/log")"
  erlc -o "$work" bench/permits/bench_{pairs,subjects,instructions}.erl bench/bench_process.erl
  ERL_CRASH_DUMP_SECONDS=0 scripts/valgrind_vm.sh --tool=callgrind --collect-bus=yes --combine-dumps=yes \
    --log-file="$work/log" --callgrind-out-file="$work/dumps" --toggle-collect='*::calls::*::entry' \
    --dump-before='*::inspect::*::nif_func' -- -S 1:1 -SDcpu 1:1 -- \
    -pa _build/rebar3/default/lib/canal_lock/ebin "$work" -s bench_instructions main -extra "$calls" \
    >"$work/output" 2>&1 || fail "bench_instructions failed: $(cat "$work/output" "$work/log")"
  sed -n 1p "$work/output"
  sed 1d "$work/output" >"$work/names"
  # The instructions of each dump, and those that lock, which callgrind omits if there are none. The first dump of each
  # row is the warm-up. The last dump follows all rows.
  awk '$1 == "totals:" { print $2, $3 + 0 }' "$work/dumps" | sed -n 'n;p' >"$work/numbers"
  [ "$(wc -l <"$work/names")" -eq "$(wc -l <"$work/numbers")" ] ||
    fail "callgrind did not find the functions that start and end the count: $(cat "$work/output")"
  paste -d ' ' "$work/numbers" "$work/names" | awk -v calls="$calls" '
    $1 <= calls { print "instructions: callgrind counted nothing for: " $0 >"/dev/stderr"; exit 1 }
    {
      name = $0
      sub(/^[0-9]+ [0-9]+ /, "", name)
      printf "%-34s %8.1f %5.1f\n", name, $1 / calls, $2 / calls
    }'
}

# In native/, which may select another toolchain.
rustc=$(cd native && rustc -vV | sed -n 's/^release: //p')
{
  echo "# Instructions of native calls on x86-64, and those that lock a cache line: scripts/instructions.sh"
  echo "rustc $rustc"
  count
} >"$work/now"

if [ -n "$update" ]; then
  cp "$work/now" "$file"
  cat "$file"
  exit
fi

awk -v percent=$max_percent -v wider=$max_percent_other_version -v least=$max_instructions \
  -v least_locked=$max_locking '
  function beyond(difference, allowed) { return difference > allowed || -difference > allowed }
  function line(name, what,    more) {
    more = (name in before && name in now) ? sprintf("%+.1f", now[name] - before[name]) : ""
    printf "%-34s %8s %8s %8s   %6s %6s   %s\n", name, before[name], now[name], more, \
      locked_before[name], locked_now[name], what
  }
  function fail(name, what) { line(name, "FAILED: " what); failed = 1 }

  # Not the name of a row, which may begin with #{.
  /^# / { next }
  /^(rustc|OTP) / {
    if (NR == FNR) {
      known_by[$1] = $0
    } else if (known_by[$1] != $0) {
      percent = wider
      printf "The file was written with %s, and this is %s.\n", known_by[$1], $0
    }
    next
  }
  {
    name = $0
    sub(/( +[0-9.]+)( +[0-9.]+)$/, "", name)
  }
  NR == FNR { before[name] = $(NF - 1); locked_before[name] = $NF; next }
  { names[++last] = name; now[name] = $(NF - 1); locked_now[name] = $NF }

  END {
    printf "%-34s %26s   %13s\n%-34s %8s %8s %8s   %6s %6s\n", \
      "", "instructions", "that lock", "", "before", "now", "", "before", "now"
    update = "scripts/instructions.sh --update"
    for (i = 1; i <= last; i++) {
      name = names[i]
      if (!(name in before)) {
        fail(name, "new. To record it: " update)
        continue
      }
      allowed = before[name] * percent / 100
      if (allowed < least) allowed = least
      difference = now[name] - before[name]
      locked = locked_now[name] - locked_before[name]
      if (!beyond(difference, allowed) && !beyond(locked, least_locked)) line(name, "ok")
      else if (difference > allowed || locked > least_locked) fail(name, "more. Find out why. To accept it: " update)
      else fail(name, "fewer. To record it: " update)
    }
    for (name in before) if (!(name in now)) fail(name, "missing. To record that: " update)
    exit failed
  }
' "$file" "$work/now"
