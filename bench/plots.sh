#!/usr/bin/env bash
# Draws what the benchmark has measured: bench/plots.sh SAMPLES.csv FOLDER
#
# One SVG for each case that the samples have: plots/NAME.gp says what is in it, plots/style.gp what all have in
# common. The same samples give the same bytes, so that a commit shows what has changed.
set -euo pipefail
export LC_ALL=C # a point is a point, and sort means bytes

[ $# -eq 2 ] || { echo "usage: bench/plots.sh SAMPLES.csv FOLDER" >&2; exit 2; }
samples=$1
folder=$2
rooms=$(cd "$(dirname "$0")/plots" && pwd)

fail() { echo "plots: $*" >&2; exit 1; }

command -v gnuplot >/dev/null || fail "there is no gnuplot here: scripts/setup.sh bench installs it"
[ -r "$samples" ] || fail "$samples cannot be read"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk -v order="$rooms/order" -f "$rooms/samples.awk" "$samples" >"$work/samples" || exit 1
sort -t $'\t' -k 1,1n -k 2,2g -k 3,3n -k 4,4n -k 5,5g "$work/samples" | awk -f "$rooms/quartiles.awk" >"$work/quartiles"
awk -f "$rooms/facts.awk" "$samples" >"$work/facts"
mkdir -p "$folder"

draw() { # NAME CASE[/MEASURE]...
  local name=$1 title
  shift
  awk -v cases=" $* " -f "$rooms/places.awk" "$work/quartiles" >"$work/$name"
  if [ ! -s "$work/$name" ]; then
    echo "plots: no $name.svg, for the samples have nothing of: $*"
    return
  fi
  title=$(sed -n 's/^title = "\(.*\)"$/\1/p' "$rooms/$name.gp")
  (cd "$rooms" && LC_ALL=C.UTF-8 gnuplot -c style.gp "$name" "$work/$name" "$work/facts") >"$work/svg" ||
    fail "gnuplot could not draw $name"
  # The second takes out groups with nothing in them.
  sed -e "s|<title>Gnuplot</title>|<title>$title</title>|" -f "$rooms/card.sed" "$work/svg" |
    sed -e '/^<g [^>]*>$/{' -e N -e '/\n<\/g>$/d' -e '}' >"$folder/$name.svg"
  echo "plots: $folder/$name.svg"
}

draw pair pair
draw refused refused
draw keys keys/pair
draw buckets buckets/pair
draw crowd crowd/per_second
draw held held/pair
draw latency latency
draw lives lives
draw die_off die_off
draw sweep sweep info
draw memory memory
draw mix mix/per_second
