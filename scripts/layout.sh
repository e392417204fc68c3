#!/usr/bin/env bash
# Checks the layout that .editorconfig describes, in all files of git. cargo fmt and mix format check Rust and Elixir in
# addition; for Erlang there is no formatter without hex.
set -euo pipefail
cd "$(dirname "$0")/.."

files() { git ls-files --cached --others --exclude-standard -z -- ':!LICENSE' ':!*.lock'; }

status=0
files | LC_ALL=C xargs -0 awk '
  function report(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; found = 1 }
  FNR == 1 {
    is_make = FILENAME ~ /Makefile$/
    is_text = FILENAME ~ /\.md$/
    max = FILENAME ~ /\.(supp|svg)$|\/golden\// ? 1000000 : is_text ? 100 : 120
    fenced = 0
  }
  /\r/ { report("a carriage return") }
  # A patch begins each line of code with one more character, and so also empty ones.
  FILENAME ~ /\.patch$/ { next }
  /[ \t]$/ { report("a blank at the end") }
  /^ *\t/ && !is_make { report("a tab") }
  is_text && /^ *```/ { fenced = !fenced }
  # Tables, code, and a link alone may be longer.
  is_text && (fenced || /^\|/ || /^[^ ]*$/) { next }
  # Characters: bytes without those that continue one.
  length($0) - gsub(/[\200-\277]/, "&") > max { report("longer than " max " characters") }
  END { exit found }
' || status=1
while IFS= read -r -d '' file; do
  [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || { echo "$file: no end of line at the end"; status=1; }
done < <(files)
exit $status
