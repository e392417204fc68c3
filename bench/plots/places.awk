# Selects the lines of some cases (or of one measure of a case) from the output of quartiles.awk, and adds columns:
#
#   ...  row  place  places  panel  ours  bare       (tab-separated)
#
# A row is a combination of variant, x and measure; a panel is a variant. Both are numbered from 1 in the order of the
# file. `place' is the position of the subject in its row, in a fixed order of subjects; `places' is their number.
# `ours' and `bare' are the medians of ours and of the bare harness in that row, or none.

BEGIN {
    FS = OFS = "\t"
    subjects = split("none ours elixir floor atomics counters ets gen_server poolboy", subject, " ")
}

index(cases, " " $1 " ") || index(cases, " " $1 "/" $5 " ") {
    row = $2 OFS $3 OFS $5
    if (!(row in row_of)) row_of[row] = ++rows
    if (!($2 in panel_of)) panel_of[$2] = ++panels
    line[++lines] = $0
    row_at[lines] = row_of[row]
    subject_at[lines] = $4
    panel_at[lines] = panel_of[$2]
    median[row_of[row], $4] = $7
}

function median_of(row, subject) { return (row, subject) in median ? median[row, subject] : "none" }

END {
    for (row = 1; row <= rows; row++)
        for (i = 1; i <= subjects; i++)
            if ((row, subject[i]) in median) place[row, subject[i]] = ++places[row]
    for (i = 1; i <= lines; i++) {
        row = row_at[i]
        print line[i], row, place[row, subject_at[i]], places[row], panel_at[i], \
            median_of(row, "ours"), median_of(row, "none")
    }
}
