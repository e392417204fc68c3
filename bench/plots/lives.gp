# The cost of a process that lives for one permit, and the time to release everything after many deaths.
title = "Short-lived processes: spawn, acquire, exit"
subtitle = "Many at once, on all schedulers."
none_is = "spawn and exit only"
row_name(v, m) = v
panels = 3
shows_1 = "per_life"; says_1 = "each process"
shows_2 = "last_death_to_free"; says_2 = "last death to all free"
shows_3 = "longest_mailbox"; says_3 = "longest mailbox"
over_bare = 1
load "bars.gp"
