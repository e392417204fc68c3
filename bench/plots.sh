#!/usr/bin/env bash
# Draws the plots of a benchmark run: bench/plots.sh SAMPLES.csv FOLDER
#
# Writes one SVG for each case in the samples, which are those of bench/run.sh or of bench/waiting/run.sh. plots/NAME.gp
# describes a plot, plots/style.gp the common settings. The same samples yield the same bytes, so that a diff shows real
# changes.
set -euo pipefail
export LC_ALL=C # decimal points, and byte order in sort

[ $# -eq 2 ] || { echo "usage: bench/plots.sh SAMPLES.csv FOLDER" >&2; exit 2; }
samples=$1
folder=$2
plots=$(cd "$(dirname "$0")/plots" && pwd)

fail() { echo "plots: $*" >&2; exit 1; }

command -v gnuplot >/dev/null || fail "gnuplot is not installed; run scripts/setup.sh bench"
[ -r "$samples" ] || fail "$samples is not readable"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk -v order="$plots/order" -f "$plots/samples.awk" "$samples" >"$work/samples" || exit 1
sort -t $'\t' -k 1,1n -k 2,2g -k 3,3n -k 4,4n -k 5,5g "$work/samples" | awk -f "$plots/quartiles.awk" >"$work/quartiles"
awk -f "$plots/facts.awk" "$samples" >"$work/facts"
mkdir -p "$folder"

draw() { # NAME CASE[/MEASURE]...
  local name=$1 title
  shift
  awk -v cases=" $* " -f "$plots/places.awk" "$work/quartiles" >"$work/$name"
  if [ ! -s "$work/$name" ]; then
    echo "plots: skipped $name.svg: the samples contain no case of: $*"
    return
  fi
  title=$(sed -n 's/^title = "\(.*\)"$/\1/p' "$plots/$name.gp")
  (cd "$plots" && LC_ALL=C.UTF-8 gnuplot -c style.gp "$name" "$work/$name" "$work/facts") >"$work/svg" ||
    fail "gnuplot could not draw $name"
  # The second sed removes empty groups.
  sed -e "s|<title>Gnuplot</title>|<title>$title</title>|" -f "$plots/card.sed" "$work/svg" |
    sed -e '/^<g [^>]*>$/{' -e N -e '/\n<\/g>$/d' -e '}' >"$folder/$name.svg"
  echo "plots: $folder/$name.svg"
}

if grep -q '^hand_over,' "$samples"; then
  draw hand_over hand_over
  draw overload overload/per_second
  exit
fi
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
