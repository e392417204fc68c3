# Whether a call gets dearer with what its process holds already.
title = "acquire + release, by what the process holds already"
subtitle = "One process."
x_says = "permits held"
tic(v) = time_tic(v)
in_words(v) = duration(v)
load "lines.gp"
