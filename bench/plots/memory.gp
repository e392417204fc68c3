# The memory of a key in use and of a holder.
title = "Memory of a key in use, and of a holder"
subtitle = ""
words_of(m) = m eq "per_key" ? "own tables" : m eq "per_key_public" ? "public table only" \
    : m eq "per_key_os" || m eq "per_holder_os" ? "resident set" \
    : m eq "per_holder" ? "without its slot" : m eq "per_holder_with_slots" ? "with its slot" \
    : m eq "per_holder_vm" ? "additional VM memory" : m
row_name(v, m) = (v eq "holder" ? "" : "key, ") . v . ", " . words_of(m)
panels = 1
shows_1 = "per_key per_key_public per_key_os per_holder per_holder_with_slots per_holder_vm per_holder_os"
over_bare = 0
load "bars.gp"
