# Whether the cost of a call grows with the number of permits that its process holds.
title = "acquire + release, by the number of permits already held"
subtitle = "One process."
x_says = "permits held"
tic(v) = time_tic(v)
in_words(v) = duration(v)
load "lines.gp"
