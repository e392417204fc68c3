#!/usr/bin/env bash
# Calls everything in the native library in the installed VM, under valgrind (memcheck). The library must not access
# memory after free or out of bounds, and must not leak. Takes one to two minutes.
#
# The VM allocates with malloc here (+Mea min), so valgrind tracks each block. A VM that generates code at run time
# causes false reports, so this script filters them:
#
# - A report counts only if its stack has a frame of a .rs file. The library is the only Rust code in the VM.
#   scripts/valgrind_nif.supp suppresses reports that begin in generated code.
# - Erlang keeps stacks on process heaps, and valgrind takes them for thread stacks, where popped memory is invalid. So
#   an access inside an allocated block is no error. All other invalid accesses are errors.
# - For the same reason the script does not check for uninitialized memory.
# - The VM of OTP 25 crashes under valgrind, without any native library too, in functions that look up a key in a map of
#   some hundred keys and then add it: `maps:update_with/4' with 600 integers. So audit/0 is not called. Its native
#   calls are those of keys/0 and of test_setup:permits/0.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "FAILED: $*" >&2; exit 1; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
log=$work/log

# With line numbers in the reports.
export CARGO_PROFILE_RELEASE_{DEBUG=line-tables-only,STRIP=none}
rebar3 as test compile >"$log" 2>&1 || fail "$(cat "$log")"
ebin=$PWD/_build/rebar3/test/lib/canal_lock/ebin
tests=$work/tests
mkdir "$tests"
erlc +debug_info -o "$tests" \
  test/support/harness/test_{await,setup,worker}.erl test/support/test_{manager_crash,key_terms}.erl \
  test/storms/soak_every_call.erl

# valgrind would report garbage on Erlang's heaps as lost when the VM halts.
collect='_ = [erlang:garbage_collect(Process) || Process <- processes()]'
status=0
timeout 900 scripts/valgrind_vm.sh --undef-value-errors=no --error-limit=no --num-callers=40 --leak-check=full \
  --show-leak-kinds=definite --suppressions=scripts/valgrind_nif.supp --log-file="$log" -- \
  -S 2:2 -SDcpu 2:2 -Mea min -- -pa "$ebin" "$tests" \
  -eval "ok = soak_every_call:run(), $collect, io:format(\"done~n\"), halt()." >"$work/output" 2>&1 || status=$?
grep -qx 'done' "$work/output" || fail "the calls did not complete ($status): $(tail -n 20 "$work/output")"
grep -q 'ERROR SUMMARY' "$log" || fail "valgrind did not complete: $(tail -n 20 "$log")"

# Each error is a paragraph.
ours="$(sed 's/^==[0-9]*== //; s/^==[0-9]*==$//' "$log" |
  awk 'BEGIN { RS = ""; ORS = "\n\n" } /\.rs:[0-9]+\)/ && !/inside a block of size [0-9,]+ alloc.d/')"
[ -z "$ours" ] || { echo "$ours" >&2; fail "valgrind reports errors in the native library, see above"; }
echo "covered: all calls of the native library under valgrind, no error"
