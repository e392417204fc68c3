# Cleans up gnuplot's SVG for the repository: removes the program's version and numbering, unused markers, default
# attributes, and unnecessary blanks.
s/	/ /g
s/^ *//
s/ *$//
/^$/d
/^<desc>/d
/^<title>gnuplot_plot/d
/id='gpPt\([0-47-9]\|1[0-5]\)'/d
/^<filter/,/^<\/filter>/d
s/ stroke-linecap="butt" stroke-linejoin="miter"//
# Rounded corners, for dark pages.
/^<rect x="0" y="0"/s/<rect /<rect rx="8" /
# The title is the only text of this size. gnuplot's own bold would require markup in every text.
s/font-size="16\.00"/& font-weight="600"/
