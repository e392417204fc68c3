# Latency of hand-overs.
title = "From the release to the instant when the waiter runs"
subtitle = "Two processes take turns with one permit; times include the clock."
none_is = "a message"
timed = "to_run"
load "percentiles.gp"
