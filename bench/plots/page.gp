# The page of a plot: size (`high', in pixels), title, subtitle, the meaning of a mark (`reads'), a legend if `legend'
# is set, and the facts. All of it belongs to the first panel; the others remove the labels up to `tag'.

wide = 800.0
set terminal svg size wide, high fixed noenhanced font "sans-serif,13" background "#ffffff" linewidth 1
across(px) = px / wide
# From the top.
down(px) = 1 - px / (1.0 * high)

rounds = sprintf(most(samples) > 1 ? "%d rounds" : "%d round", most(samples))
if (least(samples) < most(samples)) { rounds = sprintf("%d to ", least(samples)) . rounds }
set label 1 title at screen across(20), down(26) font ",16" textcolor rgb ink
set label 2 (subtitle eq "" ? "" : subtitle . " ") . sprintf(reads, rounds) . (better eq "more" ? " More" : " Less") \
    . " is better." at screen across(20), down(47) font ",12" textcolor rgb quiet
set label 3 facts at screen across(20), down(high - 14) font ",10" textcolor rgb quiet
tag = 3
if (legend) {
    from = 26
    do for [i = words(subjects):1:-1] {
        s = word(subjects, i)
        tag = tag + 1
        set label tag name(s) at screen across(from), down(70) left offset 0.9, -0.25 font ",12" \
            textcolor rgb color(s) point pt point(s) ps 0.7 lc rgb color(s)
        from = from + 32 + 6.7 * strlen(name(s))
    }
}
top = legend ? 88 : 66
