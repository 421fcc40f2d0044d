"""One GPU, one direction, one host link, one tray: single faults inside NVLink domains."""
from fleet import boxes, rack, record_boxes, record_rack
from kinds import family
from noise import NORMAL, Noise
from platforms import GB200, GB300, HGX_A100, HGX_B200, HGX_H100, HGX_H200

BOXES = (HGX_A100, HGX_H100, HGX_H200, HGX_B200)
RACKS = (GB200, GB300)
LOSSES = (1, 2, 4, 9)


def start(platform, rng, seed, noise=NORMAL, count=None):
    if platform.rack > 1:
        return rack(platform, count or rng.randint(4, 6), seed, noise)
    return boxes(platform, count or rng.randint(3, 6), seed, noise, claim=rng.random() < 0.6)


def finish(site, readings=3, **options):
    if site.platform.rack == 1:
        options.pop("local", None)
    return record_rack(site, readings, **options) if site.platform.rack > 1 else record_boxes(site, readings, **options)


@family("links-{lost}-{platform}", [dict(platform=p, lost=k) for p in BOXES + RACKS for k in LOSSES if k < p.links])
def links(rng, seed, platform, lost):
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    return finish(site, rng.choice((1, 3)) if lost > 1 else 3)


@family("links-{lost}-{side}-only-{platform}", [dict(platform=p, lost=k, side=s) for p in (HGX_H100, HGX_B200, GB200) for k in (1, 2, 9)
                                               for s in ("tx", "rx")])
def one_direction(rng, seed, platform, lost, side):
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost, (side,))
    site.truth.gpu(node, gpu, (side,))
    return finish(site)


@family("links-{lost}-{platform}-under-{noise}", [dict(platform=p, lost=k, noise=n) for p in (HGX_H100, GB200) for k in (1, 4)
                                                 for n in ("sigma-1pc", "offsets", "tails", "runs", "drift", "cold-run")])
def under_noise(rng, seed, platform, lost, noise):
    levels = {"sigma-1pc": Noise(sigma=0.01), "offsets": Noise(sigma=0.003, gpu=0.005, node=0.003),
              "tails": Noise(sigma=0.004, tail=0.02), "runs": Noise(sigma=0.003, run=0.008), "drift": Noise(sigma=0.003, drift=0.015),
              "cold-run": Noise(sigma=0.003, disturbed={0: 0.93})}[noise]
    site = start(platform, rng, seed, levels)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    return finish(site, 4)


@family("gpu-slow-{share}-{platform}", [dict(platform=p, share=s) for p in (HGX_A100, HGX_H200, GB200) for s in (0.92, 0.8, 0.5)])
def slow_gpu(rng, seed, platform, share):
    """Not a count of links: clocks, or a GPU in a low power state."""
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.slow(node, gpu, share)
    site.truth.gpu(node, gpu)
    return finish(site)


@family("parked-gpu-{platform}", [dict(platform=p) for p in BOXES + RACKS])
def parked(rng, seed, platform):
    """No NVLink at all: copies inside the node fall back to PCIe, none leave it."""
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.parked.add((node, gpu))
    site.truth.gpu(node, gpu, coarse=False)
    return finish(site)


@family("missing-gpu-{platform}-{how}", [dict(platform=p, how=h) for p in (HGX_H100, HGX_B200, GB200) for h in ("claimed",)])
def missing(rng, seed, platform, how):
    """Tools see one GPU less than is claimed."""
    from truth import Fault, Pattern
    site = rack(platform, 5, seed) if platform.rack > 1 else boxes(platform, 4, seed, claim=True)
    node = site.some()[0]
    site.absent[node] = {platform.gpus - 1}
    site.truth.add(Fault("missing GPU of %s" % node, [[Pattern(frozenset({"node", "gpu", "tray"}), node)]], {node}))
    return finish(site, 2)


@family("host-link-{share}-{sides}-{platform}", [dict(platform=p, share=s, sides=d) for p in (HGX_A100, HGX_H100, HGX_B200, GB200)
                                                for s, d in ((0.5, "both"), (0.25, "both"), (0.5, "h2d"), (0.6, "d2h"))])
def host_link(rng, seed, platform, share, sides):
    """PCIe at half its width, or one generation down."""
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    which = ("h2d", "d2h") if sides == "both" else (sides,)
    site.fabric.slow(node, gpu, share, which)
    site.truth.gpu(node, gpu, which)
    return finish(site, 2, local=2)


@family("tray-at-{share}-{platform}", [dict(platform=p, share=s) for p in (HGX_H100, HGX_B200, GB200, GB300) for s in (0.92, 0.85, 0.6)])
def tray(rng, seed, platform, share):
    """Every GPU of a node, alike: a power cap, or one switch of a box."""
    site = start(platform, rng, seed, count=6)
    node = site.some()[0]
    site.fabric.node_share[node] = share
    site.truth.node(node, range(platform.gpus))
    return finish(site)


@family("board-{platform}-lost-a-switch", [dict(platform=p) for p in (HGX_H100, HGX_H200, HGX_B200)])
def board(rng, seed, platform):
    """A box without one of its switches: all its GPUs lost the same links."""
    site = start(platform, rng, seed, count=5)
    node = site.some()[0]
    for gpu in range(platform.gpus):
        for side in ("tx", "rx"):
            site.fabric.links[((node, gpu), side)] = [0] + list(platform.groups[1:])
    site.truth.node(node, range(platform.gpus))
    return finish(site)


@family("alone-links-{lost}-{platform}", [dict(platform=p, lost=k) for p in BOXES for k in (1, 4)])
def alone(rng, seed, platform, lost):
    """A box without others to compare with."""
    site = boxes(platform, 1, seed, claim=rng.random() < 0.5)
    gpu = site.gpu()
    site.fabric.lose_links(site.nodes[0], gpu, lost)
    site.truth.gpu(site.nodes[0], gpu)
    return finish(site)


@family("p2p-only-links-{lost}-{platform}", [dict(platform=p, lost=k) for p in (HGX_A100, HGX_H100, HGX_B200) for k in (2, 9)])
def p2p_only(rng, seed, platform, lost):
    site = boxes(platform, 4, seed, claim=False)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    for name in site.nodes:
        for k in range(2):
            site.files["nodes/%s/p2p-%d.txt" % (name, k)] = site.p2p(name, k, 2)
    return site.case()


@family("json-links-{lost}-{platform}", [dict(platform=p, lost=k) for p in (HGX_H200, HGX_B200) for k in (1, 4)])
def as_json(rng, seed, platform, lost):
    site = boxes(platform, 4, seed, claim=False)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    return finish(site, 3, form="json")


@family("half-a-link-{platform}", [dict(platform=p) for p in (HGX_H100, GB200)])
def half_link(rng, seed, platform):
    """2.8 %: at the limit. It may be reported, but need not be."""
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.slow(node, gpu, 1 - 0.5 / 18)
    site.truth.gpu(node, gpu, must=False)
    site.truth.may("pass", "unknown", "degraded")
    return finish(site)


@family("host-link-{share}-{side}-read-once-{platform}", [dict(platform=p, share=s, side=d) for p in (HGX_H100, GB200) for s in (0.6, 0.5)
                                                         for d in ("h2d", "d2h")])
def host_link_once(rng, seed, platform, share, side):
    """One reading only, far below every other GPU's: it may be a dip, so unknown is acceptable, and a pass is not."""
    site = start(platform, rng, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.slow(node, gpu, share, (side,))
    site.truth.gpu(node, gpu, (side,), must=False)
    site.truth.may("unknown", "degraded")
    site.truth.must_unknown.add(node)
    return finish(site, 1)
