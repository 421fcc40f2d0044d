"""Domains: planes out, split and merged domains, nodes in the wrong one, spare trays, claims that do not hold."""
from fleet import Site, rack, record_rack
from kinds import family
from noise import NORMAL
from platforms import GB200, GB200_NVL4
from truth import Fault, Pattern

UUIDS = ("3c1f9a52-7d3e-4f3b-9a56-1f0be8d1aa01", "9e0c4b7d-11a2-4c55-8d0e-52b6c1f7bb02")


def stretch(site, name, must=False):
    """A finding about a domain is allowed."""
    site.truth.add(Fault(name, [[Pattern(frozenset({"domain", "plane", "instrument", "boundary"}))]], set(), must))


@family("planes-{gone}-of-18-out-one-rack", [dict(gone=k) for k in (1, 2, 4)])
def only_rack(rng, seed, gone):
    """All parts are low to the same degree; only the expectation reveals it."""
    site = rack(GB200, 5, seed)
    for k in rng.sample(range(18), gone):
        site.fabric.planes[k] = 1
    stretch(site, "planes")
    site.truth.unknown.add("*")
    site.truth.may(*(("pass", "unknown", "degraded", "failed") if gone == 1 else ("unknown", "degraded", "failed")))
    return record_rack(site, 3)


@family("planes-{gone}-of-18-out-and-levels-high", [dict(gone=k) for k in (1, 2)])
def high_level(rng, seed, gone):
    """As above, where copies between nodes are some per cent above the expectation."""
    site = rack(GB200, 5, seed)
    for k in rng.sample(range(18), gone):
        site.fabric.planes[k] = 1
    stretch(site, "planes")
    site.truth.unknown.add("*")
    site.truth.may("pass", "unknown", "degraded", "failed")
    return record_rack(site, 2, scale=1.036)


@family("planes-{gone}-of-18-out-one-rack-of-{racks}", [dict(gone=k, racks=3) for k in (1, 2, 4)])
def one_of_racks(rng, seed, gone, racks):
    """One rack of several lost planes: the rack is named, no node of it."""
    site = Site(GB200, 0, seed, NORMAL, names=[])
    files, nodes, claims = {}, [], []
    sick = rng.randrange(racks)
    for r in range(racks):
        one = rack(GB200, 4, "%s/%d" % (seed, r), domain="block%02d" % r, claim=False)
        one.nodes[:] = ["r%dn%02d" % (r, i) for i in range(4)]
        one.fabric.nodes[:] = one.nodes
        one.claim_domain(one.domain, one.nodes)
        if r == sick:
            for k in rng.sample(range(18), gone):
                one.fabric.planes[k] = 1
            site.truth.unknown |= set(one.nodes)
        record_rack(one, 3)
        files.update(one.files)
        nodes += one.nodes
        claims += one.claim
    site.nodes, site.files, site.claim = nodes, files, claims
    site.truth.add(Fault("planes of a rack", [[Pattern(frozenset({"domain", "plane"}))]], set(), must=gone > 1))
    site.truth.may("degraded", "failed", "unknown", *(("pass",) if gone == 1 else ()))
    return site.case()


@family("split-{a}-and-{b}", [dict(a=a, b=b) for a, b in ((3, 3), (4, 2), (5, 4), (6, 3), (9, 9))])
def split(rng, seed, a, b):
    """One claim over two NVLink domains; copies across have no number."""
    site = rack(GB200, a + b, seed)
    other = rng.sample(site.nodes, b) if rng.random() < 0.5 else site.nodes[-b:]
    for node in other:
        site.fabric.island[node] = "other"
    small = set(other) if b < a else set(site.nodes)
    stretch(site, "split")
    for node in other if b < a else ():
        site.truth.node(node, range(4), must=False, kinds=("node", "tray", "gpu"))
    site.truth.unknown.add("*")
    site.truth.must_unknown |= small
    site.truth.may("unknown", "degraded", "failed")
    return record_rack(site, 1 if a + b > 12 else 2)


@family("merged-by-claim-{a}-and-{b}-{driver}", [dict(a=a, b=b, driver=t) for a, b in ((3, 3), (4, 2)) for t in ("uuid", "silent")])
def merged(rng, seed, a, b, driver):
    """Two racks claimed as one, each measured separately; the driver may report each node's domain."""
    site = rack(GB200, a + b, seed)
    first, second = site.nodes[:a], site.nodes[a:]
    site.locals(1)
    for tag, group in (("a", first), ("b", second)):
        for k in range(2):
            site.files["domains/block01/multinode-%s%d.txt" % (tag, k)] = site.multinode(k, 2, nodes=group)
    if driver == "uuid":
        for node in site.nodes:
            site.smi(node, cluster=UUIDS[node in second])
    stretch(site, "merged")
    site.truth.unknown.add("*")
    site.truth.may("unknown", "degraded", "failed")
    if b < a:
        site.truth.must_unknown |= set(second)
        for node in second:
            site.truth.node(node, range(4), must=False, kinds=("node", "tray", "gpu"))
    else:
        site.truth.must_unknown |= set(site.nodes)
    return site.case()


@family("wrong-domain-1-of-{count}-{driver}", [dict(count=c, driver=t) for c in (5, 7, 9) for t in ("uuid", "silent")])
def wrong(rng, seed, count, driver):
    """One node is really in another rack: it reaches no node of this one; the others are as expected."""
    site = rack(GB200, count, seed)
    node = site.some()[0]
    site.fabric.island[node] = "elsewhere"
    if driver == "uuid":
        tell(site, node)
        site.truth.node(node, range(4), kinds=("node", "tray"))
    else:   # N/A alone could be a pair that was not sampled
        site.truth.node(node, range(4), must=False, kinds=("node", "tray", "gpu"))
        site.truth.must_unknown.add(node)
        site.truth.may("unknown", "degraded", "failed")
    return record_rack(site, 2)


def tell(site, *elsewhere):
    """The drivers report each node's domain."""
    for name in site.nodes:
        site.smi(name, cluster=UUIDS[name in elsewhere])


@family("wrong-domain-and-{fault}", [dict(fault=f) for f in ("link", "pair", "tray")])
def wrong_and(rng, seed, fault):
    site = rack(GB200, 8, seed)
    node, sick, third = site.some(3)
    site.fabric.island[node] = "elsewhere"
    site.truth.node(node, range(4))
    tell(site, node)
    gpu = site.gpu()
    if fault == "link":
        site.fabric.lose_links(sick, gpu, 2)
        site.truth.gpu(sick, gpu)
    elif fault == "pair":
        other = (third, site.gpu())
        site.fabric.slow_pair((sick, gpu), other, 0.6)
        site.truth.pair((sick, gpu), other)
    else:
        site.fabric.node_share[sick] = 0.8
        site.truth.node(sick, range(4))
    return record_rack(site, 3)


@family("split-{a}-and-{b}-and-{lost}-links-in-the-{where}", [dict(a=a, b=b, lost=2, where=w) for a, b in ((5, 3), (4, 4), (9, 9), (12, 6))
                                                                 for w in ("first", "second")])
def split_and(rng, seed, a, b, lost, where):
    """A fault inside one part of a split domain is still a fault."""
    site = rack(GB200, a + b, seed)
    second = site.nodes[a:]
    for node in second:
        site.fabric.island[node] = "other"
    if b < a:
        for node in second:
            site.truth.node(node, range(4), must=False)
    sick = rng.choice(site.nodes[:a] if where == "first" else second)
    gpu = site.gpu()
    site.fabric.lose_links(sick, gpu, lost)
    stretch(site, "split")
    site.truth.unknown.add("*")
    site.truth.gpu(sick, gpu)
    site.truth.may("degraded", "failed")
    return record_rack(site, 1 if a + b > 12 else 3)


@family("healthy-spare-tray-not-claimed-{count}", [dict(count=c) for c in (4, 6)], healthy=True)
def spare(rng, seed, count):
    """The run had one more node than is claimed. No part is broken."""
    site = rack(GB200, count + 1, seed, claim=False)
    site.claim_domain(site.domain, site.nodes[:-1])
    site.truth.unknown.add(site.nodes[-1])
    site.truth.may("pass", "unknown")
    return record_rack(site, 2)


@family("claimed-and-not-measured-{count}", [dict(count=c) for c in (4, 6)])
def absent(rng, seed, count):
    """A node that is claimed and in no output is unknown; the others pass."""
    site = rack(GB200, count + 1, seed)
    gone = site.nodes.pop(rng.randrange(count + 1))
    site.fabric.nodes[:] = site.nodes
    site.truth.may("unknown")
    case = record_rack(site, 2)
    case.nodes = site.nodes + [gone]
    site.truth.must_unknown.add(gone)
    site.truth.unknown.add(gone)
    return case


@family("nvl4-boards-{count}", [dict(count=c) for c in (1, 3, 6)], healthy=True)
def nvl4(rng, seed, count):
    """Boards of four with the product name of a rack's, and a third of its rate. No node is blamed."""
    from fleet import boxes, record_boxes
    site = boxes(GB200_NVL4, count, seed, claim=False)
    site.truth.may("pass", "unknown", *(("degraded",) if count == 1 else ()))
    site.truth.unknown.add("*")
    if count == 1:
        site.truth.node(site.nodes[0], range(4), must=False)
    return record_boxes(site, 2)


@family("stale-uuid-of-one-node-measured-fine", [dict()])
def stale(rng, seed):
    """The driver of one node reports another domain, and every copy works. A claim is wrong; no part is slow."""
    site = rack(GB200, 5, seed)
    node = site.some()[0]
    for name in site.nodes:
        site.smi(name, cluster=UUIDS[name == node])
    site.truth.node(node, range(4), must=False, kinds=("node", "tray", "gpu"))
    site.truth.unknown.add(node)
    site.truth.may("pass", "unknown", "degraded", "failed")
    return record_rack(site, 2)
