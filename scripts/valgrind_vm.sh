#!/usr/bin/env bash
# Starts the installed Erlang VM under valgrind. (`erl' is a script, which valgrind cannot follow.)
#
#   scripts/valgrind_vm.sh VALGRIND-OPTION... -- EMULATOR-OPTION... -- ARGUMENT...
set -euo pipefail

command -v valgrind >/dev/null || { echo "valgrind_vm: valgrind is missing; install it with: make setup" >&2; exit 1; }

of_valgrind=()
while [ "$1" != -- ]; do of_valgrind+=("$1"); shift; done
shift
of_emulator=()
while [ "$1" != -- ]; do of_emulator+=("$1"); shift; done
shift

ask='io:format("~ts ~ts~n", [code:root_dir(), erlang:system_info(version)]), halt().'
read -r root version < <(erl -noshell -eval "$ask")
export ROOTDIR=$root BINDIR=$root/erts-$version/bin EMU=beam PROGNAME=erl

# --smc-check: valgrind must notice that generated code changes.
exec valgrind --smc-check=all --fair-sched=yes "${of_valgrind[@]}" \
  "$BINDIR/beam.smp" -SDio 1 -A 1 -sbwt none -sbwtdcpu none -sbwtdio none "${of_emulator[@]}" -- \
  -root "$root" -bindir "$BINDIR" -progname erl -- -home "$HOME" -- -noshell -kernel logger_level none "$@"
