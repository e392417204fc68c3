#!/usr/bin/env bash
# Counts the instructions of a call and those of them that lock a cache line (a compare-and-swap, a fence), each of
# which takes the time of dozens; and compares with scripts/instructions.txt. On a machine that others use, times vary
# too much to show that a change has made a call dearer. These numbers are the same on each run.
#
#   scripts/instructions.sh            fails if a call takes more instructions than it did, or fewer
#   scripts/instructions.sh --update   writes the file; git has the numbers of before
#
# They say nothing about waiting, for memory or for another core: `make bench' and `make bench-table' do.
#
# What is counted, by valgrind's callgrind, of code that is built as it is released:
#
#   table CALL   One call of the table: what the function `counted' of native/bench_table/src/bin/table_instructions
#                does in one thread, without the set-up. The memory allocator is its own.
#   nif KEY      An acquire and a release of a key: what the two native functions do, with all that they call in the VM.
#                What leads there is not counted: the Erlang functions, and the VM's way into a native function.
#                bench/bench_instructions.erl makes the calls, of all keys in one VM.
#
# Another compiler may make other code of the same source, and another VM has other functions. So the numbers belong to
# those that the file names. With others, only a large difference fails.
#
# Not by gungraun (formerly iai-callgrind): it compares with the last run in the folder of build products, which a clean
# checkout does not have, or with limits in the source, beyond which more fails, and not less; and it wants a program of
# the same version installed beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
# They would make other code.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

file=scripts/instructions.txt
# A multiple of the keys and tables whose mean some calls of the table are.
table_calls=20000
# Each pair takes as many instructions as the one before.
nif_pairs=1000
# A difference up to this passes: so many percent, or so many instructions where that is more. The same code in another
# order makes as much.
percent=5
percent_of_others=15
least=4
# Instructions that lock: one more or less fails with any compiler. Some calls are a mean.
least_locked=0.5

case "$*" in
  '') update= ;;
  --update) update=yes ;;
  *) echo "usage: scripts/instructions.sh [--update]" >&2; exit 2 ;;
esac
if [ "$(uname -sm)" != 'Linux x86_64' ]; then
  echo "instructions: SKIPPED: the numbers are those of x86-64 on Linux, and this is $(uname -sm)" >&2
  exit 0
fi

fail() { echo "instructions: $*" >&2; exit 1; }

command -v valgrind >/dev/null || fail "valgrind is missing; install it with: make setup"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

callgrind=(--tool=callgrind --collect-bus=yes --combine-dumps=yes --log-file="$work/log")

collected() { # FILE: of each dump the instructions, and those that lock, which callgrind leaves out if there are none
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
  # Of each key the first dump is of the warm-up. The last one is of what comes after all keys.
  collected "$work/dumps" | sed -n 'n;p' >"$work/numbers"
  [ "$(wc -l <"$work/names")" -eq "$(wc -l <"$work/numbers")" ] ||
    fail "callgrind has not met the functions that start and end the count; these are the names: $(cat "$work/output")"
  paste -d ' ' "$work/numbers" "$work/names" | of_one "$nif_pairs"
}

of_one() { # TIMES: lines `INSTRUCTIONS LOCKING NAME' of so many calls, as the file has them
  awk -v times="$1" '
    {
      name = $0
      sub(/^[0-9]+ [0-9]+ /, "", name)
      if ($1 <= times) {
        printf "instructions: nothing was counted of: %s\n", name >"/dev/stderr"
        exit 1
      }
      printf "%-34s %8.1f %5.1f\n", name, $1 / times, $2 / times
    }
  '
}

# In native/, as cargo chose it there.
rustc=$(cd native && rustc -vV | sed -n 's/^release: //p')
{
  echo "# The instructions of a call on x86-64, and those of them that lock a cache line: scripts/instructions.sh"
  echo "rustc $rustc"
  count_table
  count_nifs
} >"$work/now"

if [ -n "$update" ]; then
  cp "$work/now" "$file"
  cat "$file"
  exit
fi

awk -v percent=$percent -v wider=$percent_of_others -v least=$least -v least_locked=$least_locked '
  function beyond(difference, allowed) { return difference > allowed || -difference > allowed }
  function line(name, what,    more) {
    more = (name in before && name in now) ? sprintf("%+.1f", now[name] - before[name]) : ""
    printf "%-34s %8s %8s %8s   %6s %6s   %s\n", name, before[name], now[name], more, \
      locked_before[name], locked_now[name], what
  }
  function fail(name, what) { line(name, "FAILED: " what); failed = 1 }
  # Is that of other tools than the numbers in the file?
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
      printf "The numbers are those of %s, and this is %s.\n", known_by[$1], $0
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
      printf "Of %s, only a difference of more than %d %% in instructions fails.\n", \
        others["rustc"] ? "all calls" : "native functions", wider
    printf "%-34s %26s   %13s\n%-34s %8s %8s %8s   %6s %6s\n", \
      "", "instructions", "that lock", "", "before", "now", "", "before", "now"
    update = "scripts/instructions.sh --update"
    for (i = 1; i <= last; i++) {
      name = names[i]
      if (!(name in before)) {
        fail(name, "it is new. Write it down: " update)
        continue
      }
      allowed = allowed_of(name)
      difference = now[name] - before[name]
      locked = locked_now[name] - locked_before[name]
      if (!beyond(difference, allowed) && !beyond(locked, least_locked)) line(name, "ok")
      else if (difference > allowed || locked > least_locked) fail(name, "more. Find out why; if it has to be: " update)
      else fail(name, "fewer. Write them down: " update)
    }
    for (name in before) if (!(name in now)) fail(name, "it is gone. Write it down: " update)
    exit failed
  }
' "$file" "$work/now"
