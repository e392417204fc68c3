# The cost of the death of many holders at once.
title = "Holders killed at once: time until their permits are free"
subtitle = ""
none_is = "processes that hold nothing"
row_name(v, x, m) = v . (m eq "last_death_to_free" ? ", from the last death" \
    : m eq "all_in" ? ", from the kill" : ", " . m)
said = "ours ets"
below = "ets"
load "dots.gp"
