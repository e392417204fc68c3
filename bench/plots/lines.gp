# A panel for each variant, with a curve for each subject and a band from the first to the third quartile. Both axes are
# logarithmic. Input: `x_says', and `tic(v)' and `in_words(v)', which format a number of the y axis. A single panel has
# names at the ends of its curves; several panels share a legend. The bare harness is left out.

of_shown = sprintf("$%d != \"none\" && ", subject)
subjects = subjects_of(of_shown . "1 ")
shown = panels_of(of_shown)
panels = words(shown)
legend = panels > 1
reads = "Line: median of %s; band: quartiles."
high = 400
load "page.gp"

lo = begin_at(0.85 * lowest(of_shown))
hi = end_at(1.1 * highest(of_shown))
first_x = ask(of_shown . sprintf("(!n++ || $%d < v) { v = $%d } END { print v }", along, along)) + 0
last_x = ask(of_shown . sprintf("$%d + 0 > v { v = $%d } END { print v }", along, along)) + 0
set logscale xy
set xrange [first_x:last_x > first_x ? last_x : 10 * first_x]
set yrange [lo:hi]
set xtics ()
set ytics ()
heights = ""
do for [e = -1:11] {
    t = 10.0 ** e
    if (t >= first_x && t <= last_x) { set xtics add (count_tic(t) t) }
    do for [m in (hi / lo <= 60 ? "1 2 5" : "1")] {
        t = m * 10.0 ** e
        if (t > 0.99 * lo && t < 1.01 * hi) {
            set ytics add (tic(t) t)
            heights = heights . sprintf(" %f", t)
        }
    }
}
set xlabel x_says offset 0, 0.4 font ",12" textcolor rgb quiet
set tmargin at screen down(top + (legend ? 26 : 10))
set bmargin at screen down(high - 76)
left = 76
right = wide - (legend ? 28 : 150)
gap = 34
one = (right - left - gap * (panels - 1)) / panels

# Names at the ends of curves, from the lowest, as fractions of the height; moved up where one would cover another.
if (!legend) {
    array end_of[8]
    array named[8]
    array last[8]
    names = words(subjects)
    do for [i = 1:names] {
        named[i] = word(subjects, i)
        last[i] = ask(of_shown . sprintf("$%d == \"%s\" { v = $%d } END { print v }", subject, named[i], median)) + 0
        do for [j = i:2:-1] {
            if (last[j] < last[j - 1]) {
                v = last[j]; last[j] = last[j - 1]; last[j - 1] = v
                v = named[j]; named[j] = named[j - 1]; named[j - 1] = v
            }
        }
    }
    apart = 34.0 / (high - 76 - top - 10)
    do for [i = 1:names] {
        at = log((last[i] > lo ? last[i] : lo) / lo) / log(hi / lo)
        end_of[i] = i > 1 ? (at < end_of[i - 1] + apart ? end_of[i - 1] + apart : at) : at
        tag = tag + 1
        set label tag name(named[i]) . "\n" . in_words(last[i]) at graph 1, end_of[i] left offset 1, 0.3 font ",12" \
            textcolor rgb color(named[i])
    }
}

set multiplot
do for [i = 1:panels] {
    p = word(shown, i) + 0
    if (i > 1) {
        do for [j = 1:tag] { unset label j }
        # Grid lines without labels.
        set ytics ()
        do for [t in heights] { set ytics add ("" t + 0) }
    }
    if (legend) { set label 100 of_panel(p, variant) at graph 0, 1 offset 0, 0.8 font ",13" textcolor rgb ink }
    set lmargin at screen across(left + (i - 1) * (one + gap))
    set rmargin at screen across(left + (i - 1) * (one + gap) + one)
    here = subjects_of(of_shown . sprintf("$%d == %d ", panel, p))
    at(s) = strcol(subject) eq s && column(panel) == p ? column(along) : NaN
    plot for [s in here] data using (at(s)):p25:p75 \
            with filledcurves fill transparent solid 0.2 noborder lc rgb color(s), \
        for [s in here] data using (at(s)):median \
            with linespoints lc rgb color(s) lw width(s) pt point(s) ps 0.8 * size(s)
}
unset multiplot
