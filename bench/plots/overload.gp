# Throughput of waiting clients.
title = "Ten times overload: permits per second"
subtitle = "1,000 clients wait for 100 permits."
none_is = "100 processes, no limit"
better = "more"
row_name(v, m) = v
panels = 1
shows_1 = "per_second"
over_bare = 0
load "bars.gp"
