# The cost of a permit by type of key: ours, the lower bounds (NIF calls, one compare-and-swap), and the alternatives.
title = "Cost of a permit: acquire + release, by type of key"
subtitle = "One process, one key."
row_name(v, x, m) = v
said = "ours counters ets"
beside = "counters"
load "dots.gp"
