# Whether the cost of a call grows with the number of keys in use. It should only grow by cache misses.
title = "acquire + release, by the number of keys in use"
subtitle = "One process, keys picked at random."
none_is = "loop only"
x_says = "keys in use"
tic(v) = time_tic(v)
in_words(v) = duration(v)
load "lines.gp"
