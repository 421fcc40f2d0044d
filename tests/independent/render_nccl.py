"""nccl-tests' text: header with ranks, rows, footer."""

FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
           "alltoall": lambda n: (n - 1) / n, "reduce_scatter": lambda n: (n - 1) / n}
REDOP = {"all_reduce": "sum", "reduce_scatter": "sum", "all_gather": "none", "alltoall": "none"}
SIZE_SHARE = ((1 << 28, 0.72), (1 << 30, 0.86), (1 << 32, 0.96), (1 << 34, 1.0))


def number(value):
    """Two decimals as long as they fit, as the tool does."""
    for decimals in (2, 1):
        if len("%.*f" % (decimals, value)) <= 7:
            return "%7.*f" % (decimals, value)
    return "%7.0f" % value


def row(size, kind, ranks, busbw_out, busbw_in, wrong):
    """One size: time and algbw follow from busbw."""
    factor = FACTORS[kind](ranks)
    count = size // 4 if kind in ("all_reduce",) else size // 4 // ranks
    out = "%12d  %12d  %8s  %6s  %6s" % (size, count, "float", REDOP[kind], "-1")
    for busbw in (busbw_out, busbw_in):
        algbw = busbw / factor
        out += "  %7s %6.2f %6.2f %6s" % (number(size / algbw / 1000.0), algbw, busbw, wrong)
    return out + "\n"


def text(kind, ranks, level, jitter, wrong=0, nccl="2.26.2+cuda12.8"):
    """ranks: [(node, device, product)]; level: busbw of the largest size; jitter(): factor of one cell."""
    n = len(ranks)
    out = ("# nThread 1 nGpus 1 minBytes %d maxBytes %d step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 "
           "validation: 1 graph: 0\n#\n# Using devices\n" % (SIZE_SHARE[0][0], SIZE_SHARE[-1][0]))
    for r, (node, gpu, product) in enumerate(ranks):
        out += "#  Rank %2d Group  0 Pid %6d on %10s device %2d [0000:%02x:00] %s\n" % (r, 4000 + r, node, gpu, 0x1b + 0x10 * gpu, product)
    out += "NCCL version %s\n#\n" % nccl
    out += "#                                                              out-of-place                       in-place\n"
    out += "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    out += "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    values = []
    for size, share in SIZE_SHARE:
        pair = (level * share * jitter(), level * share * jitter())
        values += pair
        out += row(size, kind, n, pair[0], pair[1], "%d" % wrong)
    bad = 2 * n * len(SIZE_SHARE) if wrong else 0
    out += "# Out of bounds values : %d %s\n" % (bad, "FAILED" if bad else "OK")
    return out + "# Avg bus bandwidth    : %g \n#\n" % round(sum(values) / len(values), 4)
