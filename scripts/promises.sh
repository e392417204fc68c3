#!/usr/bin/env bash
# Lists how many tests hold each promise of docs/promises.md (P: permits, Q: quorum locks, PR: their progress, CP:
# cluster permits).
# A test cites a promise in its title (EUnit, ExUnit), in its name (`p4_...`) or in the comment above it (Rust).
# Fails if a promise has no test, or if a test cites a label that is no promise. With --all, prints the tests too.
set -euo pipefail
cd "$(dirname "$0")/.."

all=no
case "${1:-}" in
  --all) all=yes ;;
  "") ;;
  *) echo "usage: scripts/promises.sh [--all]" >&2; exit 2 ;;
esac

promises() { sed -nE 's/^\| \*\*((CP|PR|P|Q)[0-9]+) ([^*]*)\*\*.*/\1 \3/p' docs/promises.md; }

# LABEL FILE TEST, tab-separated, for each label that a test cites.
citations() {
  awk '
    function cite(labels, test,    n, parts, i) {
      n = split(labels, parts, /[^A-Z0-9]+/)
      for (i = 1; i <= n; i++) if (parts[i] ~ /^(CP|PR|P|Q)[0-9]+$/) print parts[i] "\t" FILENAME "\t" test
    }
    FILENAME ~ /\.(erl|exs)$/ {
      rest = $0
      while (match(rest, /"(CP|PR|P|Q)[0-9]+(, ?[A-Z]+[0-9]+)*: [^"]*"/)) {
        title = substr(rest, RSTART + 1, RLENGTH - 2)
        cite(substr(title, 1, index(title, ":")), title)
        rest = substr(rest, RSTART + RLENGTH)
      }
      next
    }
    /^ *\/\/\/ / && match($0, /(CP|PR|P|Q)[0-9]+(, ?[A-Z]+[0-9]+)*: /) {
      cited = cited " " substr($0, RSTART, RLENGTH)
      next
    }
    /^ *\/\/\// || /^ *#\[/ { next }
    match($0, /fn [a-z0-9_]+/) {
      name = substr($0, RSTART + 3, RLENGTH - 3)
      if (name ~ /^(cp|pr|p|q)[0-9]+_/) cited = cited " " toupper(substr(name, 1, index(name, "_") - 1))
      cite(cited, name)
    }
    { cited = "" }
  ' test/*/*.{erl,exs} native/permit_table/{tests/*,src,src/*}/*.rs \
    native/quorum/tests/{,*/,*/*/}*.rs native/quorum_check/tests/{,*/}*.rs | sort -u
}

cited=$(citations)
status=0
while read -r label words; do
  tests=$(awk -F '\t' -v label="$label" '$1 == label' <<<"$cited")
  count=$(grep -c . <<<"$tests") || true
  files=$(cut -f 2 <<<"$tests" | sort -u | grep -c .) || true
  printf '%-4s %-30s %4d tests in %2d files\n' "$label" "$words" "$count" "$files"
  if [ "$all" = yes ]; then
    awk -F '\t' '$1 != "" { sub(".*/", "", $2); printf "       %s: %s\n", $2, $3 }' <<<"$tests"
  fi
  if [ "$count" -eq 0 ]; then
    echo "promises: no test cites $label" >&2
    status=1
  fi
done < <(promises)

unknown=$(comm -13 <(promises | cut -d ' ' -f 1 | sort -u) <(cut -f 1 <<<"$cited" | sort -u))
if [ -n "$unknown" ]; then
  echo "promises: tests cite labels that docs/promises.md does not list:" $unknown >&2
  status=1
fi
exit $status
