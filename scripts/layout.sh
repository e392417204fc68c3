#!/usr/bin/env bash
# What .editorconfig says, checked: whoever's editor overlooks it hears of it here. Rust and Elixir have formatters of
# their own; for Erlang there is none to be had but by hex, and this is what can be said without one.
set -euo pipefail
cd "$(dirname "$0")/.."

# Those of git, as they are here; not what others have written.
files() { git ls-files --cached --others --exclude-standard -z -- ':!LICENSE' ':!*.lock'; }

status=0
files | LC_ALL=C xargs -0 awk -v max=120 '
  function wrong(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; found = 1 }
  FNR == 1 { is_make = FILENAME ~ /Makefile$/; is_code = FILENAME !~ /\.(md|supp|svg)$|\/golden\// }
  /\r/ { wrong("a carriage return") }
  /[ \t]$/ { wrong("a blank at the end") }
  /^ *\t/ && !is_make { wrong("a tab") }
  # Bytes, but for those inside of a character.
  is_code && gsub(/[\200-\277]/, "&") < length($0) - max { wrong("longer than " max " characters") }
  END { exit found }
' || status=1
while IFS= read -r -d '' file; do
  [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || { echo "$file: no end of line at the end"; status=1; }
done < <(files)
exit $status
