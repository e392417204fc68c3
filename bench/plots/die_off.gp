# What the death of very many holders at once costs.
title = "Holders that are killed all at once: until their permits are free"
subtitle = ""
none_is = "processes that hold nothing"
row_name(v, x, m) = v . (m eq "last_death_to_free" ? ", from the last death" \
    : m eq "all_in" ? ", from the kill" : ", " . m)
said = "ours ets"
below = "ets"
load "dots.gp"
