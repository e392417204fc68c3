# Durations of single calls, including the slowest.
title = "Latency of single calls, up to the slowest"
subtitle = "Each call is timed separately; times include the clock."
none_is = "clock only"
load "percentiles.gp"
