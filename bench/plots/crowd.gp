# What many processes get done together.
title = "Pairs of acquire and release per second, by the number of processes"
subtitle = "All processes together."
better = "more"
x_says = "processes"
tic(v) = count_tic(v) . "/s"
in_words(v) = count(v) . "/s"
load "lines.gp"
