# Throughput of concurrent processes.
title = "Pairs of acquire and release per second, by the number of processes"
subtitle = "Sum of all processes."
better = "more"
x_says = "processes"
tic(v) = count_tic(v) . "/s"
in_words(v) = count(v) . "/s"
load "lines.gp"
