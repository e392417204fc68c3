# What a permit costs, by the kind of key: ours against what the VM's border and one compare-and-swap cost, and against
# what a user would take instead.
title = "What a permit costs: acquire + release, by the kind of key"
subtitle = "One process, one key."
row_name(v, x, m) = v
said = "ours counters ets"
beside = "counters"
load "dots.gp"
