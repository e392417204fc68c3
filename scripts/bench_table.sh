#!/usr/bin/env bash
# Builds the benchmark of the table alone (native/bench_table) as one program that needs nothing beside it, in
# _build/bench/bench_table, and runs all of it for a short time, which is good for a look and for nothing more. How to
# measure with it, here or where it has been copied to, is said at the end, and in native/bench_table/benches/main.rs.
set -euo pipefail
cd "$(dirname "$0")/../native"
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
out=$(cd .. && pwd)/_build/bench

target=$(rustc -vV | sed -n 's/^host: //p')
build=(cargo bench --locked --package bench_table --bench bench_table --no-run --message-format=json-render-diagnostics)
# Without the C library of this machine it runs on older ones, too, and on those that have another. Where that library
# cannot be had to link with, or the system has none such, it is needed. A target that is named keeps the flags away
# from build scripts and macros, and the folder from other builds, which would be made anew after each change of flags.
needs="nothing beside it"
static=$(mktemp)
trap 'rm -f "$static"' EXIT
case $target in
  *-linux-gnu) can_be_static='cc -static' ;;
  *) can_be_static=false ;;
esac
if echo 'int main(void) { return 0; }' | $can_be_static -x c -o "$static" - 2>/dev/null; then
  export RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static"
  build+=(--target "$target" --target-dir ../_build/cargo-static)
else
  needs="the C library of a system like this"
fi

program=$("${build[@]}" | sed -n 's/.*"name":"bench_table".*"executable":"\([^"]*\)".*/\1/p')
mkdir -p "$out"
cp "$program" "$out/bench_table"
cd "$out"
CRITERION_HOME=$out/criterion ./bench_table --bench --noplot \
  --warm-up-time 0.05 --measurement-time 0.1 --sample-size 10
cat <<END

bench-table: these figures are those of a tenth of a second each. To measure, here or elsewhere, run
  _build/bench/bench_table --bench
It needs $needs. BENCH_TABLE_THREADS says how many threads there are at most; the rest is criterion's: --help.
END
