# Checks the benchmark's samples and converts them for sort and quartiles.awk:
#
#   VARIANT  X  MEASURE  SERIES  VALUE  case  variant  x  subject  measure  unit       (tab-separated)
#
# Sorted by the first five columns as numbers, the samples are in the order of the file `order' (which -v names), and
# the samples of each id are adjacent, in ascending order. Times become nanoseconds. Any invalid line stops the program,
# because a plot of incomplete samples would not look wrong.

BEGIN {
    OFS = "\t"
    header = "case,variant,x,subject,measure,unit,round,value"
    split("ns us ms s", times, " ")
    for (i = 1; i in times; i++) in_ns[times[i]] = 1000 ^ (i - 1)
    split("B 1/s messages requests", others, " ")
    for (i in others) is_unit[others[i]]
    split("ours elixir ets counters atomics floor gen_server poolboy none", known, " ")
    for (i in known) is_subject[known[i]]
    while ((getline line < order) > 0) if (line !~ /^#/) rank[line] = ++ranks
    if (ranks == 0) fail("cannot read the order file " order)
    number = "^-?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?$"
}

function rank_of(word) {
    if (!(word in rank)) rank[word] = ++ranks
    return rank[word]
}

function fail(what) {
    printf "plots: %s:%d: %s\n", FILENAME, FNR, what > "/dev/stderr"
    failed = 1
    exit 1
}

# Splits a line into `field'. Returns the number of fields, or 0 if a quote is not closed.
function split_csv(line,    n, rest) {
    n = 0
    rest = line
    for (;;) {
        if (substr(rest, 1, 1) == "\"") {
            if (!match(rest, /^"([^"]|"")*"/)) return 0
            field[++n] = substr(rest, 2, RLENGTH - 2)
            gsub(/""/, "\"", field[n])
        } else {
            match(rest, /^[^,]*/)
            field[++n] = substr(rest, 1, RLENGTH)
        }
        rest = substr(rest, RLENGTH + 1)
        if (rest == "") return n
        if (substr(rest, 1, 1) != ",") return 0
        rest = substr(rest, 2)
    }
}

{ sub(/\r$/, "") }
!headed && /^# / { next }
!headed && $0 == header { headed = 1; next }
!headed { fail("expected `# name: value' or the header " header) }

{
    n = split_csv($0)
    if (n == 0) fail("a quote is not closed, or text follows it")
    if (n != 8) fail(n " fields instead of 8")
    for (i = 1; i <= n; i++) if (field[i] ~ /\t/) fail("field " i " contains a tab")
    if (field[3] != "none" && field[3] !~ number) fail("x is neither a number nor none: " field[3])
    if (!(field[4] in is_subject)) fail("unknown subject: " field[4])
    if (field[7] !~ /^[1-9][0-9]*$/) fail("the round is not a number from 1: " field[7])
    if (field[8] !~ number) fail("the value is not a number: " field[8])

    unit = field[6]
    value = field[8]
    if (unit in in_ns) {
        value = field[8] * in_ns[unit]
        unit = "ns"
    } else if (!(unit in is_unit)) {
        fail("unknown unit: " unit)
    }
    id = field[1] OFS field[2] OFS field[3] OFS field[4] OFS field[5]
    if ((id, field[7]) in seen) fail("duplicate of round " field[7])
    seen[id, field[7]]
    if (id in unit_of && unit_of[id] != unit) fail("measured in " unit ", but in an earlier line in " unit_of[id])
    unit_of[id] = unit
    series = field[1] OFS field[2] OFS field[4] OFS field[5]
    if (!(series in place)) place[series] = ++places
    across = field[3] == "none" ? 0 : field[3]

    print rank_of(field[2]), across, rank_of(field[5]), place[series], value, id, unit
}

END {
    if (failed) exit 1
    if (!headed) fail("missing header: " header)
    if (places == 0) fail("no samples")
}
