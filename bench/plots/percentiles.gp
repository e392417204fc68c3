# A panel for each variant whose acquires (or the measure `timed') were timed, with a curve for each subject, and a last
# one for the pairs of ours, with a curve for each variant. From left to right, one call in 2, 10, 100... takes longer
# than the curve shows. The tail is the purpose of the plot, so it is stretched.

if (!exists("timed")) { timed = "acquire" }
of_acquires = sprintf("$%d == \"%s\" && ", measure, timed)
of_pairs = sprintf("$%d == \"pair\" && ", measure)
acquires = panels_of(of_acquires)
pairs = panels_of(of_pairs)
subjects = subjects_of(of_acquires . "1 ")
panels = words(acquires) + (pairs ne "")
legend = words(subjects) > 1
reads = "Line: median of %s; band: quartiles."
high = 400
load "page.gp"

lo = begin_at(0.85 * lowest(""))
hi = end_at(1.1 * highest(""))
set logscale y
set yrange [lo:hi]
set xrange [0.2:5.1]
set xtics ("50" 0.301, "90" 1, "99" 2, "99.9" 3, "99.99" 4, "max" 5) font ",11"
set ytics ()
heights = ""
do for [e = -1:11] {
    t = 10.0 ** e
    if (t > 0.99 * lo && t < 1.01 * hi) {
        set ytics add (time_tic(t) t)
        heights = heights . sprintf(" %f", t)
    }
}
set xlabel "percentile of calls" offset 0, 0.4 font ",12" textcolor rgb quiet
set tmargin at screen down(top + 26)
set bmargin at screen down(high - 76)
left = 76
gap = 30
one = (wide - 28 - left - gap * (panels - 1)) / panels

# Of the pairs, the quiet one is the baseline.
array hue[9]
hues = "0x0072b2 0x3a9fdc 0x0072b2 0x3a9fdc 0x0072b2 0x3a9fdc 0x0072b2 0x3a9fdc 0x0072b2"
others = 0
do for [k = 1:words(pairs)] {
    is_quiet = of_panel(word(pairs, k) + 0, variant) eq "quiet"
    others = others + !is_quiet
    hue[k] = is_quiet ? 0x8a8a8a : int(word(hues, others))
}

stretched(percentile) = percentile < 100 ? -log10(1 - percentile / 100.0) : 5
at(s, p, m) = strcol(subject) eq s && column(panel) == p && strcol(measure) eq m ? stretched(column(along)) : NaN
of_pair(k) = at("ours", word(pairs, k) + 0, "pair")

set multiplot
do for [i = 1:panels] {
    if (i > 1) {
        do for [j = 1:tag] { unset label j }
        # Grid lines without labels.
        set ytics ()
        do for [t in heights] { set ytics add ("" t + 0) }
    }
    set lmargin at screen across(left + (i - 1) * (one + gap))
    set rmargin at screen across(left + (i - 1) * (one + gap) + one)
    if (i <= words(acquires)) {
        p = word(acquires, i) + 0
        called = of_panel(p, variant)
        of_what = timed ne "acquire" || strstrt(called, "acquire") > 0 ? "" : "acquire "
        set label 100 of_what . called at graph 0, 1 offset 0, 0.8 font ",13" textcolor rgb ink
        here = subjects_of(of_acquires . sprintf("$%d == %d ", panel, p))
        plot for [s in here] data using (at(s, p, timed)):p25:p75 \
                with filledcurves fill transparent solid 0.2 noborder lc rgb color(s), \
            for [s in here] data using (at(s, p, timed)):median \
                with linespoints lc rgb color(s) lw width(s) pt point(s) ps 0.8 * size(s)
    } else {
        set label 100 "acquire + release, canal_lock" at graph 0, 1 offset 0, 0.8 font ",13" textcolor rgb ink
        do for [k = 1:words(pairs)] {
            set label 100 + k of_panel(word(pairs, k) + 0, variant) at graph 0, 1 offset 0.5, 0.1 - 0.9 * k font ",11" \
                textcolor rgb hue[k]
        }
        plot for [k = 1:words(pairs)] data using (of_pair(k)):p25:p75 \
                with filledcurves fill transparent solid 0.2 noborder lc rgb hue[k], \
            for [k = 1:words(pairs)] data using (of_pair(k)):median with linespoints lc rgb hue[k] lw 1.8 pt 7 ps 0.5
    }
}
unset multiplot
