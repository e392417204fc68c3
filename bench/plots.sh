#!/usr/bin/env bash
# Draws the plots of a run: bench/plots.sh SUMMARY.csv FOLDER
#
# Writes an SVG for each of the cases below that the summary has. The same summary yields the same bytes, so that a diff
# shows real changes. Subjects have the same names and colors in all plots.
set -euo pipefail
export LC_ALL=C # decimal points

[ $# -eq 2 ] || { echo "usage: bench/plots.sh SUMMARY.csv FOLDER" >&2; exit 2; }
summary=$1
folder=$2
command -v gnuplot >/dev/null || { echo "plots: skipped, because gnuplot is not installed"; exit; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Writes the rows of a case and a measure to $work/data: panel, x, subject, median, p25, p75, median of ours. Each
# variant is a panel. Writes what gnuplot must know about them to $work/head. Fails if there are none.
select_rows() { # CASE MEASURE VARIANTS
  awk -v wanted="$1" -v measure="$2" -v variants="$3" -v data="$work/unsorted" '
    function fields(line,    n) { # of a line of CSV, to the array `field`
      for (n = 0; line != ""; line = substr(line, RLENGTH + 2)) {
        match(line, /^("([^"]|"")*"|[^,]*)/)
        field[++n] = substr(line, 1, RLENGTH)
        if (gsub(/^"|"$/, "", field[n])) gsub(/""/, "\"", field[n])
      }
    }
    function quoted(text) { gsub(/"/, "\\\"", text); return "\"" text "\"" }
    /^# / { fact[substr($2, 1, length($2) - 1)] = substr($0, length($2) + 4); next }
    { fields($0) }
    field[1] == wanted && field[5] == measure && field[2] ~ variants {
      if (!(field[2] in panel)) {
        panel[field[2]] = ++panels
        title[panels] = field[2]
        sub(variants, "", title[panels])
      }
      x = field[3] == "none" ? 1 : field[3] + 0
      if (!rows || x < first) first = x
      if (!rows || x > last) last = x
      if (field[4] != "none" || wanted == "hand_over") {
        if (!lo || field[8] + 0 < lo) lo = field[8] + 0
        if (field[9] + 0 > hi) hi = field[9] + 0
      }
      if (field[4] == "ours") ours[field[2], x] = field[7]
      seen[field[4]] = 1
      row[++rows] = panel[field[2]] "\t" x "\t" field[4] "\t" field[7] "\t" field[8] "\t" field[9]
      of[rows] = field[2] SUBSEP x
      if (field[10] + 0 > rounds) rounds = field[10] + 0
    }
    END {
      if (!rows) exit 1
      for (i = 1; i <= rows; i++) print row[i] "\t" ((of[i] in ours) ? ours[of[i]] : "NaN") >data
      # From back to front: ours is drawn last, so that it stays visible.
      n = split("none poolboy ets counters atomics floor elixir global unlock other ours", all, " ")
      for (i = 1; i <= n; i++) if (all[i] in seen) subjects = subjects " " all[i]
      printf "subjects = \"%s\"\npanels = %d\narray of_panel[%d]\n", substr(subjects, 2), panels, panels
      for (i = 1; i <= panels; i++) printf "of_panel[%d] = %s\n", i, quoted(title[i])
      printf "first = %s\nlast = %s\nlowest = %.3f\nhighest = %.3f\nrounds = %d\n", first, last, lo, hi, rounds
      text = fact["machine"] " · OTP " fact["otp"] " · " fact["schedulers"] " schedulers · commit " fact["commit"]
      text = text " · " substr(fact["date"], 1, 10) (fact["mode"] == "full" ? "" : " · " fact["mode"])
      printf "facts = %s\n", quoted(text)
    }' "$summary" >"$work/head" &&
    sort -t $'\t' -k 1,1n -k 3,3 -k 2,2g "$work/unsorted" >"$work/data"
}

# VARIANTS is a regular expression of the end of their names, which is left out. The settings are on standard input.
draw() { # NAME CASE MEASURE SHAPE [VARIANTS]
  cat >"$work/settings"
  select_rows "$2" "$3" "${5-}" || return 0
  title=$(sed -n 's/^title = "\(.*\)"$/\1/p' "$work/settings")
  printf '%s\n' "$(cat "$work/head" "$work/settings")" "data = '$work/data'" "$common" "${shapes[$4]}" >"$work/plot.gp"
  LC_ALL=C.UTF-8 gnuplot "$work/plot.gp" >"$work/svg" || { echo "plots: gnuplot could not draw $1" >&2; exit 1; }
  # For the repository: without version, numbering, unused markers and blanks; with rounded corners and a bold title.
  sed -e "s|<title>Gnuplot</title>|<title>$title</title>|" -e 's|<title>data .*</title>||' \
    -e 's/\t/ /g; s/^ *//; s/ *$//; /^$/d; /^<desc>/d' -e "/id='gpPt\([0-47-9]\|1[0-5]\)'/d" \
    -e '/^<filter/,/^<\/filter>/d' -e 's/ stroke-linecap="butt" stroke-linejoin="miter"//' \
    -e '/^<rect x="0" y="0"/s/<rect /<rect rx="8" /' -e 's/font-size="16\.00"/& font-weight="600"/' "$work/svg" |
    sed -e '/^<g [^>]*>$/{' -e N -e '/\n<\/g>$/d' -e '}' >"$folder/$1.svg"
  echo "plots: $folder/$1.svg"
}

# The page: size, title, legend, facts. Colors are Okabe and Ito's palette, which is safe for most color deficiencies.
common=$(cat <<'GNUPLOT'
set datafile separator tab
set encoding utf8
panel = 1; along = 2; subject = 3; median = 4; p25 = 5; p75 = 6; of_ours = 7
name(s) = s eq "ours" ? "canal_lock" : s eq "other" ? "other build" : s eq "elixir" ? "in Elixir" \
    : s eq "floor" ? "floor: bare NIF" : s eq "counters" ? "ets:update_counter" : s eq "ets" ? "original (ETS)" \
    : s eq "unlock" ? "with unlock/1" : s eq "none" ? none_is : s
color(s) = s eq "ours" ? 0x0072b2 : s eq "elixir" || s eq "unlock" || s eq "other" ? 0x3a9fdc \
    : s eq "floor" ? 0x444444 \
    : s eq "atomics" ? 0x009e73 : s eq "counters" ? 0xb5548c \
    : s eq "none" ? 0x8a8a8a : 0xd55e00
point(s) = color(s) == 0x3a9fdc ? 6 : 7
width(s) = s eq "ours" ? 2.4 : 1.6
size(s) = s eq "ours" ? 0.75 : 0.55
digits(v, u) = (v < 9.95 ? sprintf("%.1f ", v) : sprintf("%.0f ", v)) . u
duration(v) = v < 999.5 ? digits(v, "ns") : v < 999.5e3 ? digits(v / 1e3, "µs") \
    : v < 999.5e6 ? digits(v / 1e6, "ms") : digits(v / 1e9, "s")
time_tic(v) = v < 999 ? sprintf("%g ns", v) : v < 999e3 ? sprintf("%g µs", v / 1e3) \
    : v < 999e6 ? sprintf("%g ms", v / 1e6) : sprintf("%g s", v / 1e9)
count_tic(v) = v < 999 ? sprintf("%g", v) : v < 999e3 ? sprintf("%gk", v / 1e3) : sprintf("%gM", v / 1e6)
times(v) = sprintf(v < 9.95 ? "%.1f ×" : "%.0f ×", v)
tic(v) = better eq "more" ? count_tic(v) . "/s" : time_tic(v)
# The ends of an axis: 1, 2 or 5 times a power of ten, not greater than v or not less than v.
decade(v) = 10.0 ** floor(log10(v))
begin_at(v) = (v >= 5 * decade(v) ? 5 : v >= 2 * decade(v) ? 2 : 1) * decade(v)
end_at(v) = (v <= 1.0001 * decade(v) ? 1 : v <= 2 * decade(v) ? 2 : v <= 5 * decade(v) ? 5 : 10) * decade(v)
lo = begin_at(0.85 * lowest)
hi = end_at(1.1 * highest)
ink = "#24292f"; quiet = "#6a737d"; faint = "#e4e7eb"

high = is_rows ? 154 + 32 * panels : 400
set terminal svg size 800, high fixed noenhanced font "sans-serif,13" background "#ffffff" linewidth 1
across(px) = px / 800.0
down(px) = 1 - px / (1.0 * high)
set border 0
set tics scale 0 textcolor rgb quiet font ",12"
set grid xtics ytics back linetype 1 linewidth 1 linecolor rgb faint
unset key
set bars 0
set label 1 title at screen across(20), down(26) font ",16" textcolor rgb ink
set label 2 subtitle . sprintf(rounds > 1 ? " Median of %d rounds, and quartiles. " : " %d round. ", rounds) \
    . (better eq "more" ? "More" : "Less") . " is better." at screen across(20), down(47) font ",12" textcolor rgb quiet
set label 3 facts at screen across(20), down(high - 14) font ",10" textcolor rgb quiet
from = 26
do for [i = words(subjects):1:-1] {
    s = word(subjects, i)
    set label 3 + i name(s) at screen across(from), down(70) left offset 0.9, -0.25 font ",12" \
        textcolor rgb color(s) point pt point(s) ps 0.7 lc rgb color(s)
    from = from + 34 + 7.5 * strlen(name(s))
}
GNUPLOT
)
declare -A shapes
# A row for each variant, a logarithmic axis of times (dots, because a bar needs a zero).
shapes[rows]=$(cat <<'GNUPLOT'
set logscale x
set xrange [lo:hi]
set yrange [panels + 0.5:0.5]
set xtics ()
do for [e = 0:9] { do for [m in "1 2 5"] {
    t = m * 10.0 ** e
    if (t > 0.99 * lo && t < 1.01 * hi) { set xtics add (time_tic(t) t) }
} }
longest = 0
set ytics () textcolor rgb ink
set grid noytics
do for [r = 1:panels] {
    longest = strlen(of_panel[r]) > longest ? strlen(of_panel[r]) : longest
    set ytics add (of_panel[r] r)
    set arrow from lo, r to hi, r nohead lc rgb faint back
}
set lmargin at screen across(36 + 7.4 * longest)
set rmargin at screen across(760)
set tmargin at screen down(88)
set bmargin at screen down(high - 54)
is(s) = strcol(subject) eq s
# Dots that would cover others are shifted; the counters are close to others, so their value is at the right.
aside(s) = s eq "elixir" ? 0.24 : 0
at(s) = s eq "counters" ? column(p75) : column(median)
text(s) = duration(column(median)) . (s eq "ours" ? "" : " · " . times(column(median) / column(of_ours)))
plot for [s in subjects] data using (is(s) ? column(median) : NaN):(column(panel) + aside(s)):p25:p75 \
        with xerrorbars lc rgb color(s) lw 1.5 pt point(s) ps size(s), \
    for [s in "counters ets ours"] data using (is(s) ? at(s) : NaN):(column(panel) - (s eq "counters" ? 0 : 0.4)): \
        (text(s)) with labels center offset (s eq "counters" ? 5.2 : 0), 0 font ",10" textcolor rgb color(s)
GNUPLOT
)
# A panel for each variant, with a curve for each subject and a band from the first to the third quartile. The y axis is
# logarithmic; `place' is the place of x on the other one.
shapes[lines]=$(cat <<'GNUPLOT'
set logscale y
set xrange [place(first):place(last) > place(first) ? place(last) : place(first) + 1]
set yrange [lo:hi]
set ytics ()
heights = ""
do for [e = -1:11] { do for [m in (hi / lo <= 60 ? "1 2 5" : "1")] {
    t = m * 10.0 ** e
    if (t > 0.99 * lo && t < 1.01 * hi) {
        set ytics add (tic(t) t)
        heights = heights . sprintf(" %f", t)
    }
} }
set xlabel x_says offset 0, 0.4 font ",12" textcolor rgb quiet
set tmargin at screen down(114)
set bmargin at screen down(high - 76)
gap = 34
one = (696.0 - gap * (panels - 1)) / panels
at(s, p) = strcol(subject) eq s && column(panel) == p ? place(column(along)) : NaN
set multiplot
do for [p = 1:panels] {
    if (p > 1) {
        do for [i = 1:3 + words(subjects)] { unset label i }
        # Grid lines without labels.
        set ytics ()
        do for [t in heights] { set ytics add ("" t + 0) }
    }
    set label 100 of_panel[p] at graph 0, 1 offset 0, 0.8 font ",13" textcolor rgb ink
    set lmargin at screen across(76 + (p - 1) * (one + gap))
    set rmargin at screen across(76 + (p - 1) * (one + gap) + one)
    plot for [s in subjects] data using (at(s, p)):p25:p75 \
            with filledcurves fill transparent solid 0.2 noborder lc rgb color(s), \
        for [s in subjects] data using (at(s, p)):median \
            with linespoints lc rgb color(s) lw width(s) pt point(s) ps 0.8 * size(s)
}
unset multiplot
GNUPLOT
)

draw pair pair pair rows <<'GNUPLOT'
title = "Cost of a permit: acquire + release, by type of key"
subtitle = "One process, one key. ×: times canal_lock's."
better = "less"; is_rows = 1
GNUPLOT

draw keys keys pair lines <<'GNUPLOT'
title = "acquire + release, by the number of keys in use"
subtitle = "One process, keys picked at random."
better = "less"; is_rows = 0; none_is = "loop only"; x_says = "keys in use"
place(x) = log10(x)
set xtics ("1" 0, "10" 1, "100" 2, "1k" 3, "10k" 4, "100k" 5, "1M" 6)
GNUPLOT

# From left to right, one call in 2, 10, 100... takes longer than the curve shows: the tail is stretched.
draw hand_over hand_over to_run lines <<'GNUPLOT'
title = "From the release to the instant when the waiter runs"
subtitle = "Two processes take turns with one permit."
better = "less"; is_rows = 0; none_is = "a message"; x_says = "percentile of calls"
place(x) = x < 100 ? -log10(1 - x / 100.0) : 5
set xtics ("50" 0.301, "90" 1, "99" 2, "99.9" 3, "99.99" 4, "max" 5) font ",11"
GNUPLOT

draw cluster cluster per_second lines ', 5 loops per node$' <<'GNUPLOT'
title = "Quorum locks per second, by the number of nodes"
subtitle = "All nodes on one machine, 5 loops on each."
better = "more"; is_rows = 0; x_says = "nodes"
place(x) = log(x) / log(2)
set xtics ("2" 1, "4" 2, "8" 3, "16" 4, "32" 5)
GNUPLOT
