# Throughput of a mixed load.
title = "A mix of pairs, refusals, deaths and resizes: operations per second"
subtitle = "90 % pairs, 5 % refusals, 4 % deaths, 1 % resizes; 1000 keys."
better = "more"
row_name(v, m) = ""
panels = 1
shows_1 = "per_second"
over_bare = 0
load "bars.gp"
