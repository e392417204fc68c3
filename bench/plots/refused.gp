# What hearing `full' costs; and the two halves of a pair of ours, timed apart.
title = "What a refusal costs, and an acquire and a release by themselves"
subtitle = "Refused: another holds the only permit."
row_name(v, x, m) = v . ", " . (m eq "full" ? "refused" : m)
said = "ours counters ets"
load "dots.gp"
