# How long single calls take, at worst.
title = "Latency of single calls, out to the slowest of all"
subtitle = "Each call timed by itself, clock included."
none_is = "the clock alone"
load "percentiles.gp"
