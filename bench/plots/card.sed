# What the SVG terminal of gnuplot puts out, as it shall stand in a repository: without what is the program's own (its
# version, the numbers that it gives to curves, marks that nobody uses, attributes that say the default), and without
# blanks where nobody sees them.
s/	/ /g
s/^ *//
s/ *$//
/^$/d
/^<desc>/d
/^<title>gnuplot_plot/d
/id='gpPt\([0-47-9]\|1[0-5]\)'/d
/^<filter/,/^<\/filter>/d
s/ stroke-linecap="butt" stroke-linejoin="miter"//
# A card, which a dark page wants.
/^<rect x="0" y="0"/s/<rect /<rect rx="8" /
# The title, for nothing else is of this size. gnuplot has bold only for those who let it look for markup in every text.
s/font-size="16\.00"/& font-weight="600"/
