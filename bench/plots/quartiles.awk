# Reads the sorted output of samples.awk. Prints a line for each id: median, first and third quartile (nearest rank, so
# each is a measured value) and the number of samples.
#
#   case  variant  x  subject  measure  unit  median  p25  p75  n       (tab-separated)

BEGIN { FS = OFS = "\t" }

function rank(part) { return value[part * n == int(part * n) ? part * n : int(part * n) + 1] }

function report() { if (n > 0) print id, rank(0.5), rank(0.25), rank(0.75), n }

{
    this = $6 OFS $7 OFS $8 OFS $9 OFS $10 OFS $11
    if (this != id) {
        report()
        n = 0
        id = this
    }
    value[++n] = $5
}

END { report() }
