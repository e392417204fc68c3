# A row for each variant, with a dot for each subject and a line from the first to the third quartile. The axis is
# logarithmic and shows times. Input: `row_name(variant, x, measure)', and `said' (subjects whose values are printed,
# with the ratio to ours).

rows = most(row)
legend = words(subjects) > 1
reads = "Dot: median of %s; line: quartiles" . (legend ? "; ×: times canal_lock's." : ".")
high = (legend ? 88 : 66) + 32 * rows + 66
load "page.gp"

lo = begin_at(0.85 * lowest(""))
hi = end_at(1.1 * highest(""))
set logscale x
set xrange [lo:hi]
set yrange [rows + 0.5:0.5]
set xtics ()
do for [e = -1:11] {
    do for [m in (hi / lo <= 1100 ? "1 2 5" : "1")] {
        t = m * 10.0 ** e
        if (t > 0.99 * lo && t < 1.01 * hi) { set xtics add (time_tic(t) t) }
    }
}
longest = 0
set ytics () textcolor rgb ink
set grid noytics
do for [r = 1:rows] {
    text = row_name(of_row(r, variant), of_row(r, along), of_row(r, measure))
    longest = strlen(text) > longest ? strlen(text) : longest
    set ytics add (text r)
    set arrow from lo, r to hi, r nohead lc rgb faint back
}
set lmargin at screen across(36 + 6.9 * longest)
set rmargin at screen across(wide - 40)
set tmargin at screen down(top)
set bmargin at screen down(high - 54)

with_words = ""
do for [s in subjects] { if (strstrt(" " . said . " ", " " . s . " ") > 0) { with_words = with_words . " " . s } }

is(s) = strcol(subject) eq s
# Values too small for the logarithm (such as zero) are drawn at the edge.
shown(c) = column(c) > lo ? column(c) : lo
# Shifted, because it would cover another dot.
aside(s) = s eq "elixir" ? 0.24 : 0
# Values are printed above their dots. Below is the subject that is often close to another one (NAME.gp may set
# `below'). The subject `beside', if set, has its value to the right of its line; all these values have similar lengths.
if (!exists("below")) { below = "counters" }
if (!exists("beside")) { beside = "" }
from_center(s) = s eq beside ? 5.2 : 0
from_row(s) = s eq beside ? 0 : s eq below ? -0.75 : 0.7
of_ours(s, v, mine) = s eq "ours" || mine eq "none" || mine + 0 <= 0 ? "" : " · " . times(v, mine + 0)
plot for [s in subjects] data using (is(s) ? shown(median) : NaN):(column(row) + aside(s)):(shown(p25)):(shown(p75)) \
        with xerrorbars lc rgb color(s) lw 1.5 pt point(s) ps size(s), \
    for [s in with_words] data using (is(s) ? shown(s eq beside ? p75 : median) : NaN):(column(row)): \
        (duration(column(median)) . of_ours(s, column(median), strcol(ours))) \
        with labels center offset from_center(s), from_row(s) font ",10" textcolor rgb color(s)
