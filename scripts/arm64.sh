#!/usr/bin/env bash
# Tests permits on Debian 13 for ARM64, under QEMU if this machine has another processor: the session of the demo, the
# suites of permits, and the storms with a tenth of their cases. Requires root. The native libraries are those of `make
# dist', because rustc is slow under QEMU.
#
# Left out: canal_lock_panics_tests, which builds a library; canal_lock_stalls_tests, which measures time;
# canal_lock_remote_storm_tests, which needs more than its two minutes under QEMU; and of canal_lock_memory_tests those
# that measure the memory of the process, because that is QEMU's.
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s extglob

target=aarch64-unknown-linux-gnu
scripts/distro.sh trixie sh -c "scripts/setup.sh dist && scripts/dist.sh $target"
built=_build/distro/trixie-$(dpkg --print-architecture)/canal_lock/_build/dist
export ARCH=arm64
scripts/distro.sh trixie scripts/setup.sh
cp "$built"/{checksum.term,canal_lock-*-$target.tar.gz} _build/distro/trixie-arm64/
archive=/$(basename "$built"/canal_lock-*-$target.tar.gz)

left_out='*_@(panics|stalls|memory)_tests|*_remote_*|soak_*'
suites=$(basename -s .erl -a test/{permits,storms}/!($left_out).erl | xargs)
# The VM maps the code that it generates twice. QEMU does not see that it changes (as for a trace) unless it is mapped
# once.
variables=(CANAL_LOCK_ARCHIVE="$archive" ERL_FLAGS="+JMsingle true")
CANAL_LOCK_SOAK=0.1 scripts/distro.sh trixie env "${variables[@]}" sh -euc "
  rebar3 as test compile
  ERL_LIBS=_build/rebar3/test/lib escript examples/demo.escript
  erl -noshell -pa _build/rebar3/test/lib/*/ebin _build/rebar3/test/lib/*/test -eval '
    Slots = {generator, canal_lock_memory_tests, slots_test_},
    case eunit:test([Slots | [{module, Module} || Module <- [${suites// /,}]]], [verbose]) of
        ok -> halt(0);
        error -> halt(1)
    end.'"
