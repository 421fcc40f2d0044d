"""Two to four faults at once, in one box, in several boxes, in one rack."""
import itertools

from fleet import boxes, rack, record_boxes, record_rack
from kinds import family
from platforms import GB200, HGX_A100, HGX_B200, HGX_H100

FAULTS = ("link", "links4", "tx", "slow-gpu", "pair", "tray", "host", "parked")


def afflict(site, rng, fault, taken):
    """Adds one fault to a fleet, on a GPU of a node that has none yet."""
    free = [n for n in site.nodes if n not in taken]
    node, gpu = rng.choice(free), site.gpu()
    taken.add(node)
    fabric, truth = site.fabric, site.truth
    if fault in ("link", "links4"):
        fabric.lose_links(node, gpu, 1 if fault == "link" else 4)
        truth.gpu(node, gpu)
    elif fault in ("tx", "rx"):
        fabric.lose_links(node, gpu, 3, (fault,))
        truth.gpu(node, gpu, (fault,))
    elif fault == "slow-gpu":
        fabric.slow(node, gpu, 0.7)
        truth.gpu(node, gpu)
    elif fault == "pair":
        other = (gpu + rng.randint(1, site.fabric.gpus - 1)) % site.fabric.gpus
        fabric.slow_pair((node, gpu), (node, other), 0.6)
        truth.pair((node, gpu), (node, other))
    elif fault == "tray":
        fabric.node_share[node] = 0.8
        truth.node(node, range(site.fabric.gpus))
    elif fault == "host":
        fabric.slow(node, gpu, 0.5, ("h2d", "d2h"))
        truth.gpu(node, gpu, ("h2d", "d2h"))
    elif fault == "parked":
        fabric.parked.add((node, gpu))
        truth.gpu(node, gpu)


def run(rng, seed, platform, faults, readings=3):
    if platform.rack > 1:
        site = rack(platform, len(faults) + 5, seed)
    else:
        site = boxes(platform, len(faults) + 4, seed, claim=rng.random() < 0.5)
    taken = set()
    for fault in faults:
        afflict(site, rng, fault, taken)
    return record_rack(site, readings, local=2) if platform.rack > 1 else record_boxes(site, readings)


TWO = list(itertools.combinations(FAULTS, 2))


@family("two-{a}-and-{b}-{platform}", [dict(platform=HGX_H100 if i % 2 else GB200, a=a, b=b) for i, (a, b) in enumerate(TWO)])
def two(rng, seed, platform, a, b):
    return run(rng, seed, platform, (a, b))


@family("twice-{fault}-{platform}", [dict(platform=p, fault=f) for f in ("link", "links4", "tx", "host", "pair") for p in (HGX_B200, GB200)])
def twice(rng, seed, platform, fault):
    return run(rng, seed, platform, (fault, fault))


@family("three-{a}-{b}-{c}-{platform}", [dict(platform=p, a=a, b=b, c=c) for p, (a, b, c) in zip(
    (HGX_H100, GB200) * 4, (("link", "tx", "pair"), ("link", "host", "tray"), ("links4", "link", "link"), ("parked", "pair", "link"),
                            ("tray", "tx", "host"), ("slow-gpu", "rx", "tx"), ("pair", "pair", "link"), ("host", "host", "parked")))])
def three(rng, seed, platform, a, b, c):
    return run(rng, seed, platform, (a, b, c))


@family("four-{a}-{b}-{c}-{d}-{platform}", [dict(platform=p, a=a, b=b, c=c, d=d) for p, (a, b, c, d) in zip(
    (HGX_H100, GB200) * 2, (("link", "link", "link", "link"), ("link", "tx", "pair", "host"), ("links4", "slow-gpu", "tx", "rx"),
                            ("parked", "host", "pair", "link")))])
def four(rng, seed, platform, a, b, c, d):
    return run(rng, seed, platform, (a, b, c, d))


@family("gpus-{bad}-of-{gpus}-in-one-box-lost-{lost}-{platform}",
        [dict(platform=p, bad=k, gpus=8, lost=m) for p in (HGX_H100, HGX_B200) for k in (2, 3, 4) for m in (2, 4)]
        + [dict(platform=HGX_A100, bad=2, gpus=8, lost=1)])
def same_box(rng, seed, platform, bad, gpus, lost):
    """Several GPUs of one box, among healthy boxes."""
    site = boxes(platform, 4, seed, claim=rng.random() < 0.5)
    node = site.some()[0]
    for gpu in rng.sample(range(gpus), bad):
        site.fabric.lose_links(node, gpu, lost)
        site.truth.gpu(node, gpu)
    return record_boxes(site, 3)


@family("gpus-2-of-4-in-one-tray-lost-{lost}", [dict(lost=m) for m in (1, 2, 4)])
def same_tray(rng, seed, lost):
    site = rack(GB200, 5, seed)
    node = site.some()[0]
    for gpu in rng.sample(range(4), 2):
        site.fabric.lose_links(node, gpu, lost)
        site.truth.gpu(node, gpu)
    return record_rack(site, 3)


@family("trays-{bad}-of-{count}-at-{live}of18", [dict(bad=b, count=c, live=v) for b, c in ((1, 4), (2, 4), (2, 6), (3, 9)) for v in (16, 14)])
def trays(rng, seed, bad, count, live):
    """Every GPU of some trays lost the same planes."""
    site = rack(GB200, count, seed)
    gone = rng.sample(range(18), 18 - live)
    for node in site.some(bad):
        for gpu in range(4):
            for side in ("tx", "rx"):
                site.fabric.links[((node, gpu), side)] = [0 if k in gone else 1 for k in range(18)]
        site.truth.node(node, range(4))
    return record_rack(site, 3)


@family("gpu-tx-and-another-rx-{platform}", [dict(platform=p) for p in (HGX_H100, GB200)])
def crossed(rng, seed, platform):
    """One GPU sends slowly, another of the same node receives slowly."""
    site = rack(platform, 5, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    node = site.some()[0]
    a, b = rng.sample(range(platform.gpus), 2)
    site.fabric.lose_links(node, a, 4, ("tx",))
    site.fabric.lose_links(node, b, 4, ("rx",))
    site.truth.gpu(node, a, ("tx",))
    site.truth.gpu(node, b, ("rx",))
    return record_rack(site, 3) if platform.rack > 1 else record_boxes(site, 3)
