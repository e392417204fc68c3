#!/usr/bin/env bash
# Applies the patches in native/permit_table/tests/loom/bugs to a copy of the sources, and runs the loom tests there.
# With each seeded bug its models must fail, and without a bug all models must pass. Takes one to two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

bugs=native/permit_table/tests/loom/bugs
copy=_build/seeded
rm -rf "$copy"
mkdir -p "$copy"
cp -R native "$copy/"
git apply --directory="$copy" "$bugs"/*.patch
cd "$copy/native"
RUSTFLAGS='--cfg loom' cargo test --locked --profile loom --target-dir ../../cargo-loom --package permit_table \
  --test loom -- --include-ignored --quiet
echo "covered: $(cat "$OLDPWD/$bugs"/*.patch | grep -c '^+.*seeded("') bugs of $bugs, each found by its models"
