# The cost of the result `full', and of the acquires and releases of ours, timed separately.
title = "Cost of a refusal, of an acquire and of a release"
subtitle = "Refused: another process holds the only permit."
row_name(v, x, m) = v . ", " . (m eq "full" ? "refused" : m)
said = "ours counters ets"
load "dots.gp"
