"""Several tools together: contradictions, collectives over healthy and slow pairs, the driver's reports on links and fabric."""
import render_smi
from fleet import boxes, rack, record_boxes, record_rack
from kinds import family
from platforms import GB200, HGX_A100, HGX_B200, HGX_H100, HGX_H200
from truth import Fault, Pattern

UUID = "3c1f9a52-7d3e-4f3b-9a56-1f0be8d1aa01"


@family("contradiction-{low}-low-{platform}", [dict(platform=p, low=k) for p in (HGX_H100, HGX_B200) for k in ("p2p", "nvbandwidth")])
def contradiction(rng, seed, platform, low):
    """One tool reports a GPU 25 % low, the other does not: neither is evidence against it."""
    site = boxes(platform, 4, seed, claim=rng.random() < 0.5)
    node, gpu = site.some()[0], site.gpu()
    sick = (node, gpu)
    for name in site.nodes:
        if low == "nvbandwidth" and name == node:
            site.fabric.slow(node, gpu, 0.75)
        for k in range(3):
            site.files["nodes/%s/nvbandwidth-%d.txt" % (name, k)] = site.local(name, k, 3)
        site.fabric.share.clear()
        factor = (lambda a, b: 0.75 if sick in (a, b) else 1.0) if low == "p2p" else None
        for k in range(1 if low == "p2p" else 3):
            site.files["nodes/%s/p2p-%d.txt" % (name, k)] = site.p2p(name, k, 3, scale=factor)
    site.truth.may("unknown")
    site.truth.unknown.add(node)
    site.truth.must_unknown.add(node)
    return site.case()


@family("both-tools-see-links-{lost}-lost-{platform}", [dict(platform=p, lost=k) for p in (HGX_A100, HGX_H200) for k in (1, 4)])
def agreement(rng, seed, platform, lost):
    site = boxes(platform, 4, seed, claim=rng.random() < 0.5)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    site.locals(2)
    for name in site.nodes:
        site.files["nodes/%s/p2p.txt" % name] = site.p2p(name)
    return site.case()


@family("healthy-{platform}-collectives", [dict(platform=p) for p in (HGX_A100, HGX_H100, HGX_H200, HGX_B200, GB200)], healthy=True)
def collectives(rng, seed, platform):
    site = rack(platform, 4, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    for name in site.nodes:
        site.files["nodes/%s/all_reduce.txt" % name] = site.nccl([(name, g) for g in range(platform.gpus)])
    if platform.rack > 1:
        site.files["domains/block01/all_reduce.txt"] = site.nccl(site.fabric.parts(), level=platform.rack_allreduce)
    return record_rack(site, 2) if platform.rack > 1 else record_boxes(site, 2)


@family("collective-slow-{share}-pairs-sound-{platform}", [dict(platform=p, share=s) for p in (HGX_H100, HGX_B200) for s in (0.77, 0.5)])
def slow_collective(rng, seed, platform, share):
    """All copies are at their level and the all-reduce of one node is not: the node may be blamed, but no GPU of it."""
    site = boxes(platform, 5, seed)
    node = site.some()[0]
    for name in site.nodes:
        level = platform.allreduce * (share if name == node else 1.0)
        for k in range(2):
            site.files["nodes/%s/all_reduce-%d.txt" % (name, k)] = site.nccl([(name, g) for g in range(platform.gpus)], level=level)
    site.truth.add(Fault("collective of %s" % node, [[Pattern(frozenset({"node"}), node)]], {node}, must=False))
    site.truth.unknown.add(node)
    site.truth.must_unknown.add(node)
    site.truth.may("degraded", "unknown")
    return record_boxes(site, 2)


@family("collective-slow-over-the-rack-{share}", [dict(share=s) for s in (0.75, 0.06)])
def slow_rack(rng, seed, share):
    """MNNVL off, or NVLS off: no GPU is at fault."""
    site = rack(GB200, 4, seed)
    for k in range(2):
        site.files["domains/block01/all_reduce-%d.txt" % k] = site.nccl(site.fabric.parts(), level=GB200.rack_allreduce * share)
    site.truth.add(Fault("collective", [[Pattern(frozenset({"domain", "instrument"}))]], set(), must=False))
    site.truth.unknown.add("*")
    site.truth.may("degraded", "unknown", "failed")
    return record_rack(site, 2)


@family("links-{lost}-and-collectives-{platform}", [dict(platform=p, lost=k) for p in (HGX_H100, HGX_B200, GB200) for k in (1, 2, 4)])
def links_and_collectives(rng, seed, platform, lost):
    """The collective runs at the rate of its slowest member; a finding must name that member."""
    site = rack(platform, 5, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    for name in site.nodes:
        site.files["nodes/%s/all_reduce.txt" % name] = site.nccl([(name, g) for g in range(platform.gpus)])
    if platform.rack > 1:
        members = site.fabric.parts()
        site.files["domains/block01/all_reduce.txt"] = site.nccl(members, level=platform.rack_allreduce * site.fabric.collective(members))
    return record_rack(site, 3) if platform.rack > 1 else record_boxes(site, 3)


@family("cap-{share}-and-link-and-collective", [dict(share=s) for s in (0.9, 0.8)])
def cap_and_link(rng, seed, share):
    """A capped node and a GPU of another that lost links: the collective is as slow as the slower, not as both."""
    site = rack(GB200, 6, seed)
    a, b = site.some(2)
    gpu = site.gpu()
    site.fabric.node_share[a] = share
    site.truth.node(a, range(4))
    site.fabric.lose_links(b, gpu, 2)
    site.truth.gpu(b, gpu)
    members = site.fabric.parts()
    site.files["domains/block01/all_reduce.txt"] = site.nccl(members, level=GB200.rack_allreduce * site.fabric.collective(members))
    return record_rack(site, 3)


@family("wrong-domain-and-fine-collective-inside", [dict()])
def wrong_and_collective(rng, seed):
    """The node is in another rack; its own all-reduce does not contradict that."""
    site = rack(GB200, 6, seed)
    node = site.some()[0]
    site.fabric.island[node] = "elsewhere"
    site.truth.node(node, range(4))
    for name in site.nodes:
        site.smi(name, cluster=UUID if name != node else UUID.replace("3c1f", "77aa"))
    site.files["nodes/%s/all_reduce.txt" % node] = site.nccl([(node, g) for g in range(4)])
    return record_rack(site, 2)


@family("driver-and-copies-agree-{dead}-links-{platform}", [dict(platform=p, dead=k) for p in (HGX_H100, GB200) for k in (1, 4)])
def state_agrees(rng, seed, platform, dead):
    site = rack(platform, 5, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, dead)
    site.truth.gpu(node, gpu)
    for name in site.nodes:
        site.smi(name, dead={gpu: dead} if name == node else None, cluster=UUID if platform.rack > 1 else None)
    return record_rack(site, 3) if platform.rack > 1 else record_boxes(site, 3)


@family("driver-says-{dead}-links-dead-copies-fine", [dict(dead=k) for k in (1, 4)])
def state_alone(rng, seed, dead):
    """Links that the driver reports inactive while every copy is at its level. No other part is affected."""
    site = boxes(HGX_H100, 4, seed)
    node, gpu = site.some()[0], site.gpu()
    for name in site.nodes:
        site.smi(name, dead={gpu: dead} if name == node else None)
    site.truth.gpu(node, gpu, must=False, coarse=True)
    site.truth.unknown.add(node)
    site.truth.may("degraded", "unknown", "pass")
    return record_boxes(site, 2)


@family("fabric-in-progress-on-one-node", [dict()])
def in_progress(rng, seed):
    """A tray whose fabric is not ready reaches no other tray."""
    site = rack(GB200, 6, seed)
    node = site.some()[0]
    for gpu in range(4):
        site.fabric.parked.add((node, gpu))
    for name in site.nodes:
        site.smi(name, cluster=UUID, state="In Progress" if name == node else None)
    site.truth.node(node, range(4), kinds=("node", "tray"))
    return record_rack(site, 2)


@family("healthy-topo-and-links-{platform}", [dict(platform=p) for p in (HGX_A100, HGX_H100, HGX_B200)], healthy=True)
def states(rng, seed, platform):
    site = boxes(platform, 3, seed, claim=rng.random() < 0.5)
    for name in site.nodes:
        site.smi(name)
        site.files["nodes/%s/topo-m.txt" % name] = render_smi.topo(platform, platform.gpus, nics=rng.choice((0, 4, 8)))
    return record_boxes(site, 2)


@family("state-and-nothing-measured", [dict()])
def nothing(rng, seed):
    """A report of the driver is not a measurement."""
    site = boxes(HGX_H100, 3, seed)
    for name in site.nodes:
        site.smi(name)
    site.truth.may("unknown")
    site.truth.unknown.add("*")
    site.truth.must_unknown |= set(site.nodes)
    return site.case()
