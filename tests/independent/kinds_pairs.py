"""A slow path between two healthy GPUs: no end is to blame."""
from fleet import boxes, rack, record_boxes, record_rack
from kinds import family
from platforms import GB200, HGX_B200, HGX_H100


@family("pair-in-box-{share}-{ways}-{platform}", [dict(platform=p, share=s, ways=w) for p in (HGX_H100, HGX_B200)
                                                 for s in (0.9, 0.75, 0.5) for w in ("both", "one")])
def in_box(rng, seed, platform, share, ways):
    site = boxes(platform, 4, seed, claim=rng.random() < 0.5)
    node = site.some()[0]
    a, b = rng.sample(range(platform.gpus), 2)
    site.fabric.slow_pair((node, a), (node, b), share, ways == "both")
    site.truth.pair((node, a), (node, b))
    return record_boxes(site, 3)


@family("pair-across-{share}-{ways}-gb200", [dict(share=s, ways=w) for s in (0.9, 0.75, 0.5) for w in ("both", "one")])
def across(rng, seed, share, ways):
    site = rack(GB200, 5, seed)
    x, y = site.some(2)
    a, b = (x, site.gpu()), (y, site.gpu())
    site.fabric.slow_pair(a, b, share, ways == "both")
    site.truth.pair(a, b)
    return record_rack(site, 3)


@family("pairs-{count}-across-gb200", [dict(count=k) for k in (2, 3, 4)])
def several(rng, seed, count):
    """Slow paths that share no GPU."""
    site = rack(GB200, 6, seed)
    gpus = rng.sample(site.fabric.parts(), 2 * count)
    while any(gpus[2 * i][0] == gpus[2 * i + 1][0] for i in range(count)):
        rng.shuffle(gpus)
    for i in range(count):
        site.fabric.slow_pair(gpus[2 * i], gpus[2 * i + 1], 0.6)
        site.truth.pair(gpus[2 * i], gpus[2 * i + 1])
    return record_rack(site, 3)


@family("pair-no-path-{where}", [dict(where=w) for w in ("across",)])
def no_path(rng, seed, where):
    """One cell without a number, others complete: that path failed or was not measured; no part is at fault."""
    site = rack(GB200, 5, seed)
    x, y = site.some(2)
    a, b = (x, site.gpu()), (y, site.gpu())
    site.fabric.slow_pair(a, b, None)
    site.truth.may("unknown", "degraded", "failed", "pass")
    site.truth.pair(a, b, must=False)
    return record_rack(site, 2)


@family("pair-of-nodes-{share}-gb200", [dict(share=s) for s in (0.8, 0.5)])
def nodes(rng, seed, share):
    """All sixteen paths between two trays: the trays are fine with the others."""
    from truth import Fault, Pattern
    site = rack(GB200, 6, seed)
    x, y = site.some(2)
    cells = [((x, i), (y, j)) for i in range(4) for j in range(4)]
    for a, b in cells:
        site.fabric.slow_pair(a, b, share)
    one = frozenset({"pair", "direction"})
    ways = [[Pattern(one, ends=frozenset((x, y)))], [Pattern(one, ends=frozenset(("%s:%d" % a, "%s:%d" % b))) for a, b in cells]]
    site.truth.add(Fault("ways between %s and %s" % (x, y), ways, set(), silent={x, y}))
    site.truth.unknown |= {x, y}
    return record_rack(site, 3)
