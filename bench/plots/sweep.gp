# What the manager's housekeeping costs, and looks at the table: how long one piece of each holds up its scheduler.
title = "How long a step of the sweep takes, and a look at the table"
subtitle = "In canal_lock; a rare one: the 99.9th percentile."
row_name(v, x, m) = (v eq "step" ? "step of the sweep" : v eq "per key" ? "sweep, for each idle key" : v) \
    . (x eq "none" ? "" : ", " . count_tic(x + 0) . " keys") \
    . (m eq "call" || m eq "reclaim" ? "" : m eq "rare" ? ", a rare one" : ", " . m)
said = "ours"
load "dots.gp"
