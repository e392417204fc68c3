# The line below each plot: machine and versions, from the head of the samples file. Long values are cut.

{ sub(/\r$/, "") }
/^# [a-z_]+: / {
    colon = index($0, ": ")
    fact[substr($0, 3, colon - 3)] = substr($0, colon + 2)
    next
}
{ exit }

function add(name, before, after,    text) {
    if (!(name in fact)) return
    text = fact[name]
    if (length(text) > 60) text = substr(text, 1, 59) "…"
    said = said (said == "" ? "" : " · ") before text after
}

END {
    add("machine")
    add("otp", "OTP ")
    add("schedulers", "", " schedulers")
    add("commit", "commit ")
    if ("date" in fact) fact["date"] = substr(fact["date"], 1, 10)
    add("date")
    if (fact["mode"] != "" && fact["mode"] != "full") add("mode", "", " mode")
    print said
}
