#!/usr/bin/env bash
# Builds the benchmark of the table without the BEAM (native/bench_table) as one program, _build/bench/bench_table, and
# runs each case briefly, to show that it works. The last lines that it prints, and native/bench_table/benches/main.rs,
# describe how to measure with it, on this machine or on others.
set -euo pipefail
cd "$(dirname "$0")/../native"
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
out=$(cd .. && pwd)/_build/bench

target=$(rustc -vV | sed -n 's/^host: //p')
build=(cargo bench --locked --package bench_table --bench bench_table --no-run --message-format=json-render-diagnostics)
# Linked statically if possible, so that the program runs on machines with another C library. With an explicit target,
# the flags do not apply to build scripts and macros; with its own folder, they do not cause other builds to start over.
needs="no other file"
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
  needs="a C library like that of this machine"
fi

program=$("${build[@]}" | sed -n 's/.*"name":"bench_table".*"executable":"\([^"]*\)".*/\1/p')
mkdir -p "$out"
cp "$program" "$out/bench_table"
cd "$out"
CRITERION_HOME=$out/criterion ./bench_table --bench --noplot \
  --warm-up-time 0.05 --measurement-time 0.1 --sample-size 10
cat <<END

bench-table: each case ran for a tenth of a second, which is too short to measure. To measure, run
  _build/bench/bench_table --bench
The program needs $needs. BENCH_TABLE_THREADS is the maximum number of threads. --help lists criterion's options.
END
