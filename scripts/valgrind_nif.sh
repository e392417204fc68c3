#!/usr/bin/env bash
# Runs everything that the native library does under valgrind (memcheck), in the VM that is installed: no memory of
# ours may be touched after it was freed or beyond its ends, and none may be lost. Takes a minute or two.
#
# The VM gets its memory from malloc here (+Mea min), so valgrind knows each block of ours. What it says is judged as
# follows, because a VM that makes code at run time is not a program that valgrind was made for:
#
# - Only what has a frame of ours on the stack counts: the library is the only Rust in the VM, so that is a frame with
#   a line of a .rs file. The rest is the VM's own. (What begins in code that the VM has made, has none: it is not
#   even told, scripts/valgrind_nif.supp.)
# - Erlang's stacks are on its heaps, and valgrind takes them for those of threads: what has been popped counts as
#   gone, though it is within a block that is there. So an access *inside a block that is allocated* is no error. After
#   a free, before or behind a block, or anywhere else, it is one.
# - For the same reason, whether something is initialised cannot be told: it is not asked for.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "FAILED: $*" >&2; exit 1; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
log=$work/log

rebar3 as test compile >"$log" 2>&1 || fail "$(cat "$log")"
ebin=$PWD/_build/rebar3/test/lib/canal_lock/ebin
tests=$work/tests
mkdir "$tests"
erlc +debug_info -o "$tests" \
  test/support/test_{await,manager_crash,key_terms,setup,worker}.erl test/storms/soak_every_call.erl

# What is garbage on Erlang's heaps when the VM halts, valgrind takes for lost.
collect='_ = [erlang:garbage_collect(Process) || Process <- processes()]'
status=0
timeout 900 scripts/valgrind_vm.sh --undef-value-errors=no --error-limit=no --num-callers=40 --leak-check=full \
  --show-leak-kinds=definite --suppressions=scripts/valgrind_nif.supp --log-file="$log" -- \
  -S 2:2 -SDcpu 2:2 -Mea min -- -pa "$ebin" "$tests" \
  -eval "ok = soak_every_call:run(), $collect, io:format(\"done~n\"), halt()." >"$work/output" 2>&1 || status=$?
grep -qx 'done' "$work/output" || fail "the storm did not come to its end ($status): $(tail -n 20 "$work/output")"
grep -q 'ERROR SUMMARY' "$log" || fail "valgrind did not come to its end: $(tail -n 20 "$log")"

# One paragraph for each error.
ours="$(sed 's/^==[0-9]*== //; s/^==[0-9]*==$//' "$log" |
  awk 'BEGIN { RS = ""; ORS = "\n\n" } /\.rs:[0-9]+\)/ && !/inside a block of size [0-9,]+ alloc.d/')"
[ -z "$ours" ] || { echo "$ours" >&2; fail "valgrind has something to say about the native library, see above"; }
echo "ok: valgrind has nothing to say about the native library"
