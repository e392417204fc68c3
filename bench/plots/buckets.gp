# P3: whether the cost of a call grows with the number of full buckets below.
title = "acquire + release above full buckets"
subtitle = "One process; others hold the buckets below."
x_says = "full buckets below"
tic(v) = time_tic(v)
in_words(v) = duration(v)
load "lines.gp"
