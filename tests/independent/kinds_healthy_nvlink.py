"""Healthy boxes and racks that resemble bad ones: levels, tails, drift, runs, versions, drivers, positions."""
from fleet import boxes, rack, record_boxes, record_rack
from kinds import family
from noise import NORMAL, Noise
from platforms import GB200, GB300, HGX_A100, HGX_B200, HGX_H100, HGX_H200

# name: (noise, readings, may it end unknown because it scatters?)
NOISES = {
    "quiet": (Noise(sigma=0.0006), 2, False),
    "one-reading": (NORMAL, 1, False),
    "five-readings": (NORMAL, 5, False),
    "sigma-1pc": (Noise(sigma=0.01), 3, False),
    "sigma-2pc": (Noise(sigma=0.02), 3, True),
    "sigma-3pc": (Noise(sigma=0.03), 3, True),
    "gpus-differ-0.6pc": (Noise(sigma=0.003, gpu=0.006), 3, False),
    "nodes-differ-0.5pc": (Noise(sigma=0.003, node=0.005), 3, False),
    "left-tail": (Noise(sigma=0.003, tail=0.02, dip=0.05), 3, False),
    "long-left-tail": (Noise(sigma=0.005, tail=0.05, dip=0.10), 5, True),
    "halves-differ-0.8pc": (Noise(sigma=0.003, far=0.008, gpu=0.001), 3, False),
    "drift-1.5pc": (Noise(sigma=0.003, drift=0.015), 4, False),
    "drift-3pc": (Noise(sigma=0.003, drift=0.03), 4, True),
    "run-to-run-1pc": (Noise(sigma=0.003, run=0.01), 5, False),
    "one-run-of-five-8pc-low": (Noise(sigma=0.003, disturbed={2: 0.92}), 5, False),
    "first-run-cold-4pc": (Noise(sigma=0.003, disturbed={0: 0.96}), 4, False),
    "all-at-once": (Noise(sigma=0.006, gpu=0.003, node=0.002, run=0.005, far=0.003, tail=0.01), 3, False),
}
BOXES = (HGX_A100, HGX_H100, HGX_H200, HGX_B200)


def settle(site, may_scatter):
    if may_scatter:
        site.truth.may("pass", "unknown")
        site.truth.unknown.add("*")


@family("healthy-{platform}-{noise}", [dict(platform=p, noise=n) for p in BOXES for n in NOISES], healthy=True)
def healthy_boxes(rng, seed, platform, noise):
    levels, readings, scatter = NOISES[noise]
    site = boxes(platform, rng.randint(3, 6), seed, levels, claim=rng.random() < 0.6)
    settle(site, scatter)
    return record_boxes(site, readings)


@family("healthy-{platform}-{noise}", [dict(platform=p, noise=n) for p in (GB200, GB300) for n in NOISES], healthy=True)
def healthy_racks(rng, seed, platform, noise):
    """Where readings dip, the tests inside a node are read twice: one low host copy is a dip or a slow link, and not a pass."""
    levels, readings, scatter = NOISES[noise]
    site = rack(platform, rng.randint(3, 6), seed, levels)
    settle(site, scatter)
    return record_rack(site, min(readings, 4), local=2 if levels.tail else 1)


@family("healthy-{platform}-alone-{readings}-readings", [dict(platform=p, readings=k) for p in BOXES for k in (1, 3)], healthy=True)
def one_box(rng, seed, platform, readings):
    """Only the expectation to compare with."""
    return record_boxes(boxes(platform, 1, seed, NORMAL, claim=rng.random() < 0.5), readings)


@family("healthy-{platform}-rack-of-{count}", [dict(platform=p, count=n) for p, n in ((GB200, 2), (GB200, 9), (GB200, 18), (GB300, 2))],
        healthy=True)
def sizes(rng, seed, platform, count):
    return record_rack(rack(platform, count, seed, NORMAL), 1 if count > 9 else 2)


@family("healthy-{platform}-drivers-{depth}pc-{share}", healthy=True,
        rows=[dict(platform=p, depth=d, share=s) for p in (HGX_A100, HGX_H100, HGX_B200) for d in (1, 2, 4) for s in ("few", "5-of-12", "half", "most")])
def drivers(rng, seed, platform, depth, share):
    """Nodes with the older driver are slightly lower, all within the tolerance of the expectation: one cause, no bad node."""
    site = boxes(platform, 12 if depth == 4 or "12" in share else 8, seed, NORMAL, claim=rng.random() < 0.5)
    n = len(site.nodes)
    for node in site.some({"few": max(2, n // 4), "5-of-12": 5, "half": n // 2, "most": 3 * n // 4}[share]):
        site.fabric.node_share[node] = 1.0 - depth / 100.0
        site.driver[node] = "550.54.15"
    if depth >= 2:
        site.truth.may("pass", "unknown")
        site.truth.unknown.add("*")
    return record_boxes(site, 2)


@family("healthy-{platform}-versions-{old}-and-0.8", [dict(platform=p, old=v) for p in (HGX_A100, HGX_H200) for v in ("0.4", "0.6")],
        healthy=True)
def versions(rng, seed, platform, old):
    """Two versions of the tool, whose levels differ by half a per cent."""
    site = boxes(platform, 6, seed, NORMAL)
    for node in site.some(3):
        site.version[node] = old
        site.fabric.node_share[node] = 0.995
    return record_boxes(site, 2)


@family("healthy-two-products-{first}-{second}", [dict(first=a, second=b) for a, b in ((HGX_H100, HGX_H200), (HGX_A100, HGX_H100),
                                                                                      (HGX_H200, HGX_B200))], healthy=True)
def products(rng, seed, first, second):
    one = boxes(first, 3, seed + "a", NORMAL, stem="alpha", claim=False)
    two = boxes(second, 3, seed + "b", NORMAL, stem="beta", claim=False)
    record_boxes(two, 2)
    one.files.update(two.files)
    one.nodes_all = one.nodes + two.nodes
    case = record_boxes(one, 2)
    case.nodes = one.nodes_all
    return case


@family("healthy-{platform}-p2p-warm-{warm}pc", [dict(platform=p, warm=w) for p in (HGX_A100, HGX_H100, HGX_B200) for w in (2, 5)],
        healthy=True)
def p2p(rng, seed, platform, warm):
    """p2pBandwidthLatencyTest measures its first rows while clocks ramp."""
    site = boxes(platform, 4, seed, NORMAL.but(warm=warm / 100.0), claim=False)
    for node in site.nodes:
        for k in range(3):
            site.files["nodes/%s/p2p-%d.txt" % (node, k)] = site.p2p(node, k, 3)
    if warm >= 5:
        settle(site, True)
    return site.case()


@family("healthy-{platform}-{form}", [dict(platform=p, form=f) for p in (HGX_A100, HGX_H100, HGX_B200, GB200, GB300)
                                     for f in ("json", "both-ways", "sm-too", "read-only", "no-host", "p2p-and-nvbandwidth", "smi-and-topo")],
        healthy=True)
def forms(rng, seed, platform, form):
    """The same machines through other outputs."""
    import render_smi
    site = rack(platform, 4, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    options = {"json": dict(form="json"), "both-ways": dict(both=True), "read-only": dict(tests=("read",)),
               "no-host": dict(host=False)}.get(form, {})
    site.locals(2, **options)
    for node in site.nodes:
        if form == "sm-too":
            site.files["nodes/%s/sm.txt" % node] = site.local(node, 0, 1, host=False, engine="sm", scale=0.93)
        elif form == "p2p-and-nvbandwidth":
            site.files["nodes/%s/p2p.txt" % node] = site.p2p(node)
        elif form == "smi-and-topo":
            rackwide = platform.rack > 1
            site.smi(node, cluster="3c1f9a52-7d3e-4f3b-9a56-1f0be8d1aa01" if rackwide else None)
            site.files["nodes/%s/topo.txt" % node] = render_smi.topo(platform, platform.gpus, nics=4)
    if platform.rack > 1:
        site.multi(2)
    return site.case()
