# Whether a call gets dearer with the number of keys in use: the caches' misses, and nothing else.
title = "acquire + release, by the number of keys in use"
subtitle = "One process, keys picked at random."
none_is = "the loop alone"
x_says = "keys in use"
tic(v) = time_tic(v)
in_words(v) = duration(v)
load "lines.gp"
