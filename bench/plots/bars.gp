# Bars from zero, one for each subject of each row, with a line from the first to the third quartile and the median as
# text. Input: `panels' (their number); `shows_1', `says_1', `shows_2'... (measures and title of each panel);
# `row_name(variant, measure)'; and `over_bare' (whether to print the difference to the bare harness).
# In a single panel each row is a variant and a measure. Several panels share their rows, the variants.

thick = 19
apart = 13

# Pixels from the top: the middle of each row, and the end of the last one.
array middle[200]
end = 0
rows = most(row)
most_places = most(places)
do for [r = 1:rows] {
    if (panels == 1) {
        middle[r] = end + 0.5 * (thick * of_row(r, places) + apart)
        end = end + thick * of_row(r, places) + apart
    } else {
        middle[r] = (of_row(r, panel) - 0.5) * (thick * most_places + apart)
        end = most(panel) * (thick * most_places + apart)
    }
}

legend = words(subjects) > 1
reads = "Bar: median of %s; line: quartiles."
titles = panels > 1 ? 26 : 4
high = (legend ? 88 : 66) + titles + end + 54
load "page.gp"

in_words(v, u) = u eq "ns" ? duration(v) : u eq "B" ? sprintf("%.0f B", v) : u eq "1/s" ? count(v) . "/s" : count(v)
tic(v, u) = v == 0 ? "0" : u eq "ns" ? time_tic(v) : u eq "B" ? sprintf("%g B", v) \
    : u eq "1/s" ? count_tic(v) . "/s" : count_tic(v)
more(v, b) = over_bare && b ne "none" && v > b + 0 ? sprintf(" · %s more", duration(v - b)) : ""

set ytics () textcolor rgb ink
set grid noytics
longest = 0
do for [r = 1:rows] {
    text = row_name(of_row(r, variant), of_row(r, measure))
    longest = strlen(text) > longest ? strlen(text) : longest
    set ytics add (text middle[r])
}
set yrange [end:0]
set tmargin at screen down(top + titles)
set bmargin at screen down(high - 54)
from = 36 + 6.9 * longest
gap = 34
# The first panel has longer labels and gets twice the width.
share = (wide - 24 - from - gap * (panels - 1)) / (panels + 1.0)

# The position of a data line in this panel: its height, and its start and end along the axis.
is(s) = strcol(subject) eq s && strstrt(shown, " " . strcol(measure) . " ") > 0
y(s) = is(s) ? middle[int(column(row))] + (column(place) - (column(places) + 1) / 2.0) * thick : NaN
half = 0.38 * thick
positive(v) = v > 0 ? v : 0

first = 1
set multiplot
do for [p = 1:panels] {
    shown = " " . value(sprintf("shows_%d", p)) . " "
    of_shown = sprintf("index(\"%s\", \" \" $%d \" \") && ", shown, measure)
    here = subjects_of(of_shown . "1 ")
    greatest = highest(of_shown)
    u = ask(of_shown . sprintf("1 { print $%d; exit }", unit))
    if (here eq "") { continue }
    if (!first) {
        do for [i = 1:tag] { unset label i }
        unset ytics
    }
    first = 0
    if (panels > 1) {
        set label 100 value(sprintf("says_%d", p)) at graph 0, 1 offset 0, 0.8 font ",13" textcolor rgb ink
    }
    one = p == 1 ? 2 * share : share
    set lmargin at screen across(from)
    set rmargin at screen across(from + one)
    from = from + one + gap
    # Space for the text beside the longest bar.
    set xrange [0:greatest / (1 - (over_bare && p == 1 ? 120 : 64) / one)]
    step = begin_at(greatest / (panels > 1 ? 1 : 3))
    set xtics ()
    do for [i = 0:9] {
        if (i * step <= greatest * 1.02) { set xtics add (tic(i * step, u) i * step) }
    }
    plot for [s in here] data using (0):(y(s)):(0):(column(median)):(y(s) - half):(y(s) + half) \
            with boxxyerror fill solid (s eq "ours" ? 1.0 : 0.75) noborder lc rgb color(s), \
        for [s in here] data using (is(s) ? column(p25) : NaN):(y(s)):(column(p75) - column(p25)):(0) \
            with vectors nohead lc rgb ink lw 1.2, \
        for [s in here] data using (is(s) ? positive(column(p75)) : NaN):(y(s)): \
            (in_words(column(median), strcol(unit)) . more(column(median), strcol(bare))) \
            with labels left offset 0.6, 0 font ",11" textcolor rgb color(s)
}
unset multiplot
