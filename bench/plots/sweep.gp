# Housekeeping of the manager, and inspection: how long each step occupies a scheduler.
title = "Duration of a sweep step and of an inspection"
subtitle = "canal_lock only; rare: 99.9th percentile."
row_name(v, x, m) = (v eq "step" ? "step of the sweep" : v eq "per key" ? "sweep, for each idle key" : v) \
    . (x eq "none" ? "" : ", " . count_tic(x + 0) . " keys") \
    . (m eq "call" || m eq "reclaim" ? "" : m eq "rare" ? ", rare" : ", " . m)
said = "ours"
load "dots.gp"
