#!/usr/bin/env bash
# Counts the instructions that a call of the table takes, and how many of them lock a cache line (a compare-and-swap, a
# fence), each of which takes the time of dozens; and compares with scripts/instructions.txt. Times waver too much on a
# machine that others use to tell that a change has made a call dearer; these numbers are the same on each run.
#
#   scripts/instructions.sh            fails if a call takes more or less than it did: neither comes unnoticed
#   scripts/instructions.sh --update   writes the file anew; what was in it is in the history
#
# They say nothing about waiting, for memory or for another core: `make bench' and `make bench-table' do.
#
# What is counted is what native/bench_table/src/bin/table_instructions does, built as it is released, by one thread,
# under valgrind's callgrind; only inside of its function `counted', so nothing of the set-up. The memory allocator is
# its own. Numbers belong to the compiler that the file names: another one may make other code of the same source, so
# with it only a large difference fails.
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
# A multiple of the keys and tables that some calls are told the mean of.
times=20000
# What is not worth a word: so many percent, or so many instructions where that is more. Another order of the same code
# makes as much.
percent=5
percent_of_another_compiler=15
least=4
# Of those that lock each one counts, whatever the compiler; but some calls are told by a mean.
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
command -v valgrind >/dev/null || { echo "instructions: there is no valgrind; get it with: make setup" >&2; exit 1; }

(cd native && cargo build --release --locked --package bench_table --bin table_instructions)
# In native/, as cargo chose it there.
rustc=$(cd native && rustc -vV | sed -n 's/^release: //p')
program=$(cd native && cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
program=$program/release/table_instructions

count() { # NAME: instructions of one call, and those that lock
  local said collected
  said=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-bus=yes \
    --toggle-collect='*::calls::counted*' "$program" "$1" "$times" 2>&1) || { echo "$said" >&2; return 1; }
  collected=$(sed -n 's/^==.*Collected : *\([0-9]* [0-9]*\)$/\1/p' <<<"$said")
  awk -v times="$times" '$1 > times { printf "%.1f %.1f\n", $1 / times, $2 / times; found = 1 } END { exit !found }' \
    <<<"$collected" || { echo "instructions: nothing was counted of $1: $said" >&2; return 1; }
}

counts=
for name in $("$program"); do
  numbers=$(count "$name")
  counts+="$name $numbers"$'\n'
done

if [ -n "$update" ]; then
  {
    echo "# Of one call of the table, on x86-64: its instructions, and those of them that lock a cache line."
    echo "# Written by: scripts/instructions.sh --update"
    echo "rustc $rustc"
    printf '%s' "$counts"
  } >"$file"
  cat "$file"
  exit
fi

awk -v rustc="$rustc" -v percent=$percent -v wider=$percent_of_another_compiler -v least=$least \
  -v least_locked=$least_locked '
  function beyond(difference, allowed) { return difference > allowed || -difference > allowed }
  function line(name, what,    more) {
    more = (name in before && name in now) ? sprintf("%+.1f", now[name] - before[name]) : ""
    printf "%-20s %8s %8s %8s   %6s %6s   %s\n", name, before[name], now[name], more, \
      locked_before[name], locked_now[name], what
  }
  function fail(name, what) { line(name, "FAILED: " what); failed = 1 }

  /^#/ { next }
  NR == FNR && $1 == "rustc" { known_by = $2; next }
  NR == FNR { before[$1] = $2; locked_before[$1] = $3; next }
  { names[++last] = $1; now[$1] = $2; locked_now[$1] = $3 }

  END {
    if (known_by != rustc) {
      percent = wider
      printf "The numbers are those of rustc %s, and this is %s: of instructions, only a difference of more than " \
        "%d %% fails.\n", known_by, rustc, percent
    }
    printf "%-20s %26s   %13s\n%-20s %8s %8s %8s   %6s %6s\n", \
      "", "instructions", "that lock", "", "before", "now", "", "before", "now"
    update = "scripts/instructions.sh --update"
    for (i = 1; i <= last; i++) {
      name = names[i]
      if (!(name in before)) {
        fail(name, "it is new. Write it down: " update)
        continue
      }
      allowed = before[name] * percent / 100
      if (allowed < least) allowed = least
      difference = now[name] - before[name]
      locked = locked_now[name] - locked_before[name]
      if (!beyond(difference, allowed) && !beyond(locked, least_locked)) line(name, "ok")
      else if (difference > allowed || locked > least_locked) fail(name, "more. Find out why; if it has to be: " update)
      else fail(name, "fewer. Write them down: " update)
    }
    for (name in before) if (!(name in now)) fail(name, "it is gone. Write it down: " update)
    exit failed
  }
' "$file" - <<<"${counts%$'\n'}"
