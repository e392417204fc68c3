#!/usr/bin/env bash
# Checks that no crate of the lock file needs a newer Rust than `rust-version` in native/Cargo.toml. Crates for tests
# and for all systems count. A crate that declares no version is not checked; the tests on Debian 13 build it.
set -euo pipefail
cd "$(dirname "$0")/../native"

ours=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
# Each package begins with its name and version and ends with its rust_version. In a string, cargo escapes quotation
# marks, so these patterns match keys only.
newer=$(cargo metadata --locked --format-version 1 |
  grep -oE '"name":"[^"]*","version":"[^"]*","id":|"rust_version":"[^"]*"' |
  awk -F '"' '$2 == "name" { name = $4 " " $8 } $2 == "rust_version" { print $4, name }' |
  while read -r needed name version; do
    needed=${needed%.0}
    [ "$(printf '%s\n' "$needed" "$ours" | sort -V | tail -n 1)" = "$ours" ] ||
      echo "  $name $version needs Rust $needed"
  done)
[ -z "$newer" ] || {
  printf 'rust-version in native/Cargo.toml is %s, but:\n%s\n' "$ours" "$newer" >&2
  exit 1
}
