# The common settings of all plots. gnuplot -c style.gp NAME DATA FACTS writes the plot NAME.gp to standard output.
#
# NAME.gp sets `title', `subtitle' and the input of its type of plot, and loads that type:
#   dots.gp         a row for each variant, a logarithmic axis (dots, because a bar needs a zero)
#   bars.gp         a row for each variant, an axis from zero
#   lines.gp        a panel for each variant, x and y logarithmic
#   percentiles.gp  percentiles of a distribution, with the tail stretched

data = ARG2
facts = system(sprintf("cat '%s'", ARG3))
set datafile separator tab
set datafile missing NaN
set encoding utf8

# The columns that places.awk writes. `along' is x, a name that gnuplot reserves.
variant = 2; along = 3; subject = 4; measure = 5; unit = 6; median = 7; p25 = 8; p75 = 9; samples = 10
row = 11; place = 12; places = 13; panel = 14; ours = 15; bare = 16

# Evaluates an awk program on the data. PROGRAM must not contain single quotes; CONDITION is an awk condition or empty.
ask(program) = system(sprintf("awk -F '\t' '%s' '%s'", program, data))
most(c) = ask(sprintf("$%d > most + 0 { most = $%d } END { print most + 0 }", c, c)) + 0
least(c) = ask(sprintf("NR == 1 || $%d < least + 0 { least = $%d } END { print least + 0 }", c, c)) + 0
of_row(r, c) = ask(sprintf("$%d == %d { print $%d; exit }", row, r, c))
of_panel(p, c) = ask(sprintf("$%d == %d { print $%d; exit }", panel, p, c))
panels_of(condition) = ask(condition . sprintf("!seen[$%d]++ { print $%d }", panel, panel))
# The range of an axis. Floats, because gnuplot divides integers as integers.
lowest(condition) = ask(condition . "$8 > 0 && (!n++ || $8 < v) { v = $8 } END { print n ? v : 1 }") * 1.0
highest(condition) = ask(condition . "$9 > 0 && (!n++ || $9 > v) { v = $9 } END { print n ? v : 10 }") * 1.0
# From back to front: ours is drawn last, so that it stays visible.
back_to_front = "none poolboy gen_server ets counters atomics floor elixir ours"
subjects_of(condition) = ask(condition . sprintf("{ seen[$%d] } END { n = split(\"%s\", all, \" \"); \
    for (i = 1; i <= n; i++) if (all[i] in seen) print all[i] }", subject, back_to_front))
subjects = subjects_of("")

# Subjects have the same names and colors in all plots. The colors are Okabe and Ito's palette, which is safe for most
# color deficiencies. Sky blue and purple are darker here, so that text is readable; `none', the bare harness, is gray.
none_is = "bare harness"
name(s) = s eq "ours" ? "canal_lock" : s eq "elixir" ? "in Elixir" : s eq "floor" ? "floor: bare NIF" \
    : s eq "gen_server" ? "gen_server" : s eq "poolboy" ? "poolboy" \
    : s eq "atomics" ? "atomics" : s eq "counters" ? "ets:update_counter" : s eq "ets" ? "original (ETS)" : none_is
color(s) = s eq "ours" ? 0x0072b2 : s eq "elixir" ? 0x3a9fdc : s eq "floor" ? 0x444444 \
    : s eq "gen_server" ? 0xb5548c : s eq "poolboy" ? 0xd55e00 \
    : s eq "atomics" ? 0x009e73 : s eq "counters" ? 0xb5548c : s eq "ets" ? 0xd55e00 : 0x8a8a8a
# Hollow, because the colors of these two are similar.
point(s) = s eq "elixir" ? 6 : 7
width(s) = s eq "ours" ? 2.4 : 1.6
size(s) = s eq "ours" ? 0.75 : 0.55

# Number formats. Times are in ns.
digits(v, u) = (v < 9.95 ? sprintf("%.1f ", v) : sprintf("%.0f ", v)) . u
duration(v) = v < 999.5 ? digits(v, "ns") : v < 999.5e3 ? digits(v / 1e3, "µs") \
    : v < 999.5e6 ? digits(v / 1e6, "ms") : digits(v / 1e9, "s")
time_tic(v) = v < 999 ? sprintf("%g ns", v) : v < 999e3 ? sprintf("%g µs", v / 1e3) \
    : v < 999e6 ? sprintf("%g ms", v / 1e6) : sprintf("%g s", v / 1e9)
count(v) = v < 999.5 ? sprintf("%.0f", v) : v < 999.5e3 ? sprintf(v < 9950 ? "%.1fk" : "%.0fk", v / 1e3) \
    : sprintf(v < 9.95e6 ? "%.1fM" : "%.0fM", v / 1e6)
count_tic(v) = v < 999 ? sprintf("%g", v) : v < 999e3 ? sprintf("%gk", v / 1e3) : sprintf("%gM", v / 1e6)
times(v, of) = (v < 9.95 * of ? sprintf("%.1f", v / of) : count(v / of)) . " ×"

# The ends of an axis: 1, 2 or 5 times a power of ten, not greater than v or not less than v.
decade(v) = 10.0 ** floor(log10(v))
begin_at(v) = (v >= 5 * decade(v) ? 5 : v >= 2 * decade(v) ? 2 : 1) * decade(v)
end_at(v) = (v <= 1.0001 * decade(v) ? 1 : v <= 2 * decade(v) ? 2 : v <= 5 * decade(v) ? 5 : 10) * decade(v)

ink = "#24292f"
quiet = "#6a737d"
faint = "#e4e7eb"
better = "less"
set border 0
set tics scale 0 textcolor rgb quiet font ",12"
set grid xtics ytics back linetype 1 linewidth 1 linecolor rgb faint
unset key
set bars 0

load ARG1 . ".gp"
