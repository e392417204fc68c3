#!/usr/bin/env bash
# Counts the instructions of each call and compares them with scripts/instructions.txt. Also counts those that lock a
# cache line (a compare-and-swap, a fence): each of these costs as much as dozens of others. On shared machines, times
# vary too much to show that a call became slower. These counts are the same in each run.
#
#   scripts/instructions.sh            fails if a call takes more or fewer instructions than the file says
#   scripts/instructions.sh --update   writes the file
#
# The counts do not include waiting for memory or for another core: `make bench' measures that.
#
# valgrind's callgrind counts, in release builds:
#
#   table CALL   one call of the table: the function `counted' of native/bench_table/src/bin/table_instructions in one
#                thread, without set-up, with an allocator of its own
#   nif KEY      an acquire and a release of a key: the two native functions and what they call in the VM, without the
#                Erlang functions and the VM's call of a native function. bench/bench_instructions.erl makes the calls
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
# Calls of the table per case. Some cases visit several keys or tables in turn: a multiple of their number.
table_calls=20000
# Pairs of native calls per key. Few are enough: all pairs of a key take the same number of instructions.
nif_pairs=1000
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

callgrind=(--tool=callgrind --collect-bus=yes --combine-dumps=yes --log-file="$work/log")

collected() { # FILE: the instructions of each dump, and those that lock, which callgrind omits if there are none
  awk '$1 == "totals:" { print $2, $3 + 0 }' "$1"
}

count_table() {
  local program name
  (cd native && cargo build --release --locked --package bench_table --bin table_instructions)
  program=$(cd native && cargo metadata --no-deps --format-version 1 |
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/table_instructions
  for name in $("$program"); do
    valgrind "${callgrind[@]}" --callgrind-out-file="$work/dump" --toggle-collect='*::calls::counted*' \
      "$program" "$name" "$table_calls" || fail "table_instructions $name failed: $(cat "$work/log")"
    echo "$(collected "$work/dump") table $name"
  done | of_one "$table_calls"
}

# Prints the VM's version first.
count_nifs() {
  rebar3 compile >"$work/log" 2>&1 || fail "$(cat "$work/log")"
  erlc -o "$work" bench/bench_{cases,instructions,process}.erl
  ERL_CRASH_DUMP_SECONDS=0 scripts/valgrind_vm.sh "${callgrind[@]}" --callgrind-out-file="$work/dumps" \
    --toggle-collect='*::calls::*::entry' --dump-before='*::inspect::*::nif_func' -- -S 1:1 -SDcpu 1:1 -- \
    -pa _build/rebar3/default/lib/canal_lock/ebin "$work" -s bench_instructions main -extra "$nif_pairs" \
    >"$work/output" 2>&1 || fail "bench_instructions failed: $(cat "$work/output" "$work/log")"
  sed -n 1p "$work/output"
  sed '1d; s/^/nif /' "$work/output" >"$work/names"
  # The first dump of each key is the warm-up. The last dump follows all keys.
  collected "$work/dumps" | sed -n 'n;p' >"$work/numbers"
  [ "$(wc -l <"$work/names")" -eq "$(wc -l <"$work/numbers")" ] ||
    fail "callgrind did not find the functions that start and end the count: $(cat "$work/output")"
  paste -d ' ' "$work/numbers" "$work/names" | of_one "$nif_pairs"
}

of_one() { # TIMES: turns lines `INSTRUCTIONS LOCKING NAME' of that many calls into lines of the file
  awk -v times="$1" '
    {
      name = $0
      sub(/^[0-9]+ [0-9]+ /, "", name)
      if ($1 <= times) {
        printf "instructions: callgrind counted nothing for: %s\n", name >"/dev/stderr"
        exit 1
      }
      printf "%-34s %8.1f %5.1f\n", name, $1 / times, $2 / times
    }
  '
}

# In native/, which may select another toolchain.
rustc=$(cd native && rustc -vV | sed -n 's/^release: //p')
{
  echo "# Instructions of a call on x86-64, and those that lock a cache line: scripts/instructions.sh"
  echo "rustc $rustc"
  count_table
  count_nifs
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
  # Whether the versions differ from those of the file.
  function is_of_others(name) { return others["rustc"] || (name ~ /^nif / && others["OTP"]) }
  function allowed_of(name,    allowed) {
    allowed = before[name] * (is_of_others(name) ? wider : percent) / 100
    return allowed < least ? least : allowed
  }

  /^#/ { next }
  /^(rustc|OTP) / {
    if (NR == FNR) {
      known_by[$1] = $0
    } else if (known_by[$1] != $0) {
      others[$1] = 1
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
    if (others["rustc"] || others["OTP"])
      printf "For %s, only a difference of more than %d %% in instructions fails.\n", \
        others["rustc"] ? "all calls" : "native functions", wider
    printf "%-34s %26s   %13s\n%-34s %8s %8s %8s   %6s %6s\n", \
      "", "instructions", "that lock", "", "before", "now", "", "before", "now"
    update = "scripts/instructions.sh --update"
    for (i = 1; i <= last; i++) {
      name = names[i]
      if (!(name in before)) {
        fail(name, "new. To record it: " update)
        continue
      }
      allowed = allowed_of(name)
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
