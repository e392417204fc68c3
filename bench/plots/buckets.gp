# P3: whether a call gets dearer with the number of full buckets that it has to pass.
title = "acquire + release above full buckets"
subtitle = "One process; others hold the buckets below."
x_says = "full buckets below"
tic(v) = time_tic(v)
in_words(v) = duration(v)
load "lines.gp"
