"""Boxes without a switch: bridged pairs, PCIe only, one GPU."""
import platforms
from fleet import boxes, record_boxes
from kinds import family
from noise import NORMAL
from platforms import GH200, H100_NVL, H100_NVL4, L40S, RTX6000
from truth import Fault, Pattern


def numa(site, share):
    """Copies between the halves of a box cross the sockets and are slower, in every box alike."""
    for a in site.fabric.parts():
        for b in site.fabric.parts():
            half = site.fabric.gpus // 2
            if a[0] == b[0] and (a[1] < half) != (b[1] < half):
                site.fabric.path[(a, b)] = share


@family("healthy-{platform}-{gpus}-gpus", healthy=True,
        rows=[dict(platform=p, gpus=p.gpus) for p in (H100_NVL, H100_NVL4, GH200, L40S, RTX6000)])
def sound(rng, seed, platform, gpus):
    site = boxes(platform, 4, seed, claim=bool(platform.name))
    settle(site)
    return record_boxes(site, 3)


def settle(site):
    """Allowed findings where no number is published."""
    if not site.platform.name:
        site.truth.may("pass", "unknown")
        site.truth.unknown.add("*")


@family("healthy-pcie-across-sockets-{share}-{platform}", [dict(platform=p, share=s) for p in (L40S, RTX6000) for s in (0.9, 0.72)], healthy=True)
def sockets(rng, seed, platform, share):
    site = boxes(platform, 4, seed, claim=False)
    numa(site, share)
    settle(site)
    return record_boxes(site, 3)


@family("pcie-gpu-at-half-width-{platform}", [dict(platform=p) for p in (L40S, RTX6000)])
def width(rng, seed, platform):
    """x8 instead of x16: copies to the host and to the others."""
    site = boxes(platform, 4, seed, claim=False)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.slow(node, gpu, 0.5, ("tx", "rx", "h2d", "d2h"))
    site.truth.gpu(node, gpu)
    site.truth.unknown.add("*")
    return record_boxes(site, 3)


@family("pcie-across-sockets-and-gpu-at-half-{platform}", [dict(platform=p) for p in (L40S, RTX6000)])
def sockets_and(rng, seed, platform):
    site = boxes(platform, 4, seed, claim=False)
    numa(site, 0.8)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.slow(node, gpu, 0.5, ("tx", "rx", "h2d", "d2h"))
    site.truth.gpu(node, gpu)
    site.truth.unknown.add("*")
    return record_boxes(site, 3)


@family("bridge-lost-{lost}-of-12-{gpus}-gpus", [dict(lost=k, gpus=g) for k in (2, 6) for g in (2, 4)])
def bridge(rng, seed, lost, gpus):
    """A bridge has two ends; the measurements cannot show which of them is bad."""
    platform = H100_NVL if gpus == 2 else H100_NVL4
    site = boxes(platform, 4, seed)
    node = site.some()[0]
    a, b = rng.choice(platform.bridged)
    site.fabric.slow_pair((node, a), (node, b), 1 - lost / 12)
    ends = frozenset(("%s:%d" % (node, a), "%s:%d" % (node, b)))
    named = [Pattern(frozenset({"pair", "direction"}), ends=ends), Pattern(frozenset({"node"}), node),
             Pattern(frozenset({"gpu", "direction"}), node, a), Pattern(frozenset({"gpu", "direction"}), node, b)]
    site.truth.add(Fault("bridge of %s" % node, [[p] for p in named], {node}))
    return record_boxes(site, 3)


@family("host-link-half-{platform}", [dict(platform=p) for p in (H100_NVL, GH200, L40S)])
def host(rng, seed, platform):
    site = boxes(platform, 5, seed, claim=bool(platform.name))
    node, gpu = site.some()[0], site.gpu()
    site.fabric.slow(node, gpu, 0.5, ("h2d", "d2h"))
    site.truth.gpu(node, gpu, coarse=platform.gpus == 1)
    if not platform.name:
        site.truth.unknown.add("*")
    return record_boxes(site, 3)


@family("unknown-product-{gpus}-gpus", [dict(gpus=g) for g in (4, 8)], healthy=True)
def unheard(rng, seed, gpus):
    """No number is published for this product: it cannot pass, and it has no fault."""
    from dataclasses import replace
    platform = replace(platforms.HGX_H100, name="", device="NVIDIA XQ900 Prototype", gpus=gpus)
    site = boxes(platform, 4, seed, NORMAL, claim=False)
    site.truth.may("unknown")
    site.truth.unknown.add("*")
    site.truth.must_unknown |= set(site.nodes)
    return record_boxes(site, 3)
