# What a process costs that lives for the sake of one permit, and what is left to do when many have died.
title = "Short lives: spawn, acquire, end"
subtitle = "Many at once, on all schedulers."
none_is = "spawn and exit alone"
row_name(v, m) = v
panels = 3
shows_1 = "per_life"; says_1 = "each life"
shows_2 = "last_death_to_free"; says_2 = "last death to all free"
shows_3 = "longest_mailbox"; says_3 = "longest mailbox"
over_bare = 1
load "bars.gp"
