# What a key in use and a holder take.
title = "Memory of a key in use, and of a holder"
subtitle = ""
words_of(m) = m eq "per_key" ? "by its own account" : m eq "per_key_public" ? "its public table alone" \
    : m eq "per_key_os" || m eq "per_holder_os" ? "as the system sees it" \
    : m eq "per_holder" ? "besides its slot" : m eq "per_holder_with_slots" ? "with its slot" \
    : m eq "per_holder_vm" ? "what the VM takes besides" : m
row_name(v, m) = (v eq "holder" ? "" : "key, ") . v . ", " . words_of(m)
panels = 1
shows_1 = "per_key per_key_public per_key_os per_holder per_holder_with_slots per_holder_vm per_holder_os"
over_bare = 0
load "bars.gp"
