"""Ports, rails, leaves: healthy networks and faults of one or two ports, measured pair by pair with ib_write_bw."""
import itertools

from fleet import Site, boxes
from kinds import family
from noise import NORMAL, Noise
from platforms import HDR, HGX_H200, NDR, NETWORK
from truth import Fault, Pattern

NAMES = ("pair", "direction", "rail")


def hosts(count, seed, rails=1, rate=NDR, noise=NORMAL, nic="nic-ndr-400"):
    """Hosts of which only the network is judged."""
    site = Site(NETWORK, count, seed, noise, stem="h", domain="net")
    site.claim_domain("net", site.nodes, gpus=0, nic=nic)
    site.network(rails, rate)
    if rails > 1:
        site.claim_rails(rails)
    return site


def all_pairs(site):
    return list(itertools.combinations(site.nodes, 2))


def matchings(site, rounds):
    """Rounds of the circle method: each host meets a new partner in each."""
    ring = list(site.nodes) + ([None] if len(site.nodes) % 2 else [])
    out = []
    for _ in range(rounds):
        half = len(ring) // 2
        out += [(a, b) for a, b in zip(ring[:half], reversed(ring[half:])) if a and b]
        ring = [ring[0], ring[-1]] + ring[1:-1]
    return out


@family("healthy-net-{noise}-{readings}-readings", healthy=True,
        rows=[dict(noise=n, readings=r) for n in ("quiet", "sigma-1pc", "sigma-2pc", "sigma-3pc", "ports-differ", "left-tail") for r in (1, 3)])
def sound(rng, seed, noise, readings):
    levels = {"quiet": Noise(sigma=0.001), "sigma-1pc": Noise(sigma=0.01), "sigma-2pc": Noise(sigma=0.02), "sigma-3pc": Noise(sigma=0.03),
              "ports-differ": Noise(sigma=0.003, gpu=0.005), "left-tail": Noise(sigma=0.004, tail=0.02, dip=0.06)}[noise]
    site = hosts(8, seed, noise=levels, nic=rng.choice(("nic-ndr-400", None)))
    if noise in ("sigma-2pc", "sigma-3pc") or readings == 1:
        site.truth.may("pass", "unknown")
        site.truth.unknown.add("*")
    if "nic" not in site.claim[0]:
        site.truth.may("pass", "unknown")
        site.truth.unknown.add("*")
    site.pairs(all_pairs(site), readings)
    return site.case()


@family("healthy-net-{rails}-rails-{count}-hosts", [dict(rails=r, count=c) for r, c in ((2, 6), (4, 6), (8, 4))], healthy=True)
def sound_rails(rng, seed, rails, count):
    site = hosts(count, seed, rails)
    site.pairs(all_pairs(site), 1)
    return site.case()


@family("healthy-net-{rounds}-matchings", [dict(rounds=k) for k in (1, 2, 4)], healthy=True)
def sound_matchings(rng, seed, rounds):
    site = hosts(10, seed)
    site.pairs(matchings(site, rounds), 2)
    return site.case()


@family("healthy-net-in-{unit}", [dict(unit=u) for u in ("MB/sec", "Gb/sec")], healthy=True)
def units(rng, seed, unit):
    site = hosts(6, seed)
    site.pairs(all_pairs(site), 2, unit=unit)
    return site.case()


@family("healthy-boxes-with-{rails}-rails", [dict(rails=r) for r in (1, 4, 8)], healthy=True)
def with_gpus(rng, seed, rails):
    site = boxes(HGX_H200, 4, seed)
    site.locals(1)
    site.claim_rails(rails)
    site.network(rails, NDR)
    site.pairs(all_pairs(site), 1)
    return site.case()


@family("healthy-net-leaves-{count}", [dict(count=k) for k in (2, 3)], healthy=True)
def sound_leaves(rng, seed, count):
    return leaves(seed, count).case()


def leaves(seed, count, hosts_of_leaf=4, uplink=None):
    site = hosts(count * hosts_of_leaf, seed)
    for i, node in enumerate(site.nodes):
        site.ports.leaf[node] = "leaf%d" % (i // hosts_of_leaf)
    for k in range(count):
        site.claim_leaf("leaf%d" % k, [n for n in site.nodes if site.ports.leaf[n] == "leaf%d" % k])
    if uplink is not None:
        site.ports.uplink["leaf0"] = uplink
    site.pairs(all_pairs(site), 1)
    return site


@family("net-port-{share}-{sides}-{plan}", [dict(share=s, sides=d, plan=p) for s in (0.5, 0.63, 0.85) for d in ("both", "tx", "rx")
                                           for p in ("all-pairs", "4-matchings") if s != 0.85 or p == "all-pairs"])
def port(rng, seed, share, sides, plan):
    """A port at half its rate, behind the PCIe of a generation before, or losing 15 %."""
    site = hosts(8, seed)
    node = site.some()[0]
    both = ("tx", "rx") if sides == "both" else (sides,)
    site.ports.slow(node, 0, share, both)
    site.truth.port(node, 0, sides=None if sides == "both" else both)
    site.pairs(all_pairs(site) if plan == "all-pairs" else matchings(site, 4), rng.choice((2, 3)))
    return site.case()


@family("net-port-{share}-no-class", [dict(share=s) for s in (0.5, 0.25)])
def unclassed(rng, seed, share):
    """Without an expectation for the ports; one has half the rate of its peers."""
    site = hosts(8, seed, nic=None, rate=rng.choice((NDR, HDR)))
    node = site.some()[0]
    site.ports.slow(node, 0, share)
    site.truth.port(node, 0)
    site.truth.unknown.add("*")
    site.pairs(all_pairs(site), 2)
    return site.case()


@family("net-{bad}-rails-{which}-of-{rails}", [dict(bad=b, which=w, rails=r) for b in ("half", "gen4", "tx-half") for w in ("first", "any")
                                              for r in (4, 8)])
def rail(rng, seed, bad, which, rails):
    """One port of several of a host."""
    site = hosts(6 if rails == 4 else 5, seed, rails)
    node, k = site.some()[0], 0 if which == "first" else rng.randrange(1, rails)
    sides = ("tx",) if bad == "tx-half" else ("tx", "rx")
    site.ports.slow(node, k, 0.63 if bad == "gen4" else 0.5, sides)
    site.truth.port(node, k, sides=sides if bad == "tx-half" else None)
    site.pairs(all_pairs(site), 2)
    return site.case()


@family("boxes-port-{bad}-rail-{which}-of-{rails}-{claims}", [dict(bad=b, which=w, rails=r, claims=c) for b in ("half", "gen4", "tx-half")
                                                             for w, r in (("one", 1), ("any", 4), ("any", 8)) for c in ("class", "no-class")])
def rail_of_box(rng, seed, bad, which, rails, claims):
    """One port of boxes whose GPUs are fine."""
    site = boxes(HGX_H200, 6, seed, claim=False)
    site.claim_each(nic="nic-ndr-400" if claims == "class" else None)
    site.locals(1)
    site.claim_rails(rails)
    site.network(rails, NDR)
    node, k = site.some()[0], rng.randrange(rails)
    sides = ("tx",) if bad == "tx-half" else ("tx", "rx")
    site.ports.slow(node, k, 0.63 if bad == "gen4" else 0.5, sides)
    site.truth.port(node, k, sides=sides if bad == "tx-half" else None)
    site.pairs(all_pairs(site), 1 if rails == 8 else 2)
    if claims == "no-class":
        site.truth.unknown.add("*")
    return site.case()


@family("net-storm-at-one-port", [dict()])
def storm_at_port(rng, seed):
    """The traffic of one host pauses at times: the host may be blamed or unknown; no other is affected."""
    site = hosts(8, seed)
    node = site.some()[0]
    plain = site.ports.write
    site.ports.write = lambda a, b, rail: plain(a, b, rail) * (rng.choice((1.0, 1.0, 0.7)) if node in (a, b) else 1.0)
    site.truth.port(node, 0, must=False)
    site.truth.may("pass", "unknown", "degraded")
    for other in site.nodes:
        if other != node:
            site.truth.allow(NAMES, ends_of=(node, other))
    site.truth.unknown.add("*")
    site.pairs(all_pairs(site), 3)
    return site.case()


@family("net-two-ports-half-{how}", [dict(how=h) for h in ("same-partners", "any", "met-each-other", "no-class")])
def two_ports(rng, seed, how):
    site = hosts(10, seed, nic=None if how == "no-class" else "nic-ndr-400")
    names = rng.sample(site.nodes, len(site.nodes))
    x, y = names[:2]
    for node in (x, y):
        site.ports.slow(node, 0, 0.5)
        site.truth.port(node, 0)
    if how == "same-partners":
        near, far = names[2:5], names[5:10]
        plan = [(a, b) for a in (x, y) for b in near] + [(a, b) for a in near for b in far] + list(itertools.combinations(far, 2))
    elif how == "met-each-other":
        plan = [m for m in matchings(site, 5) if set(m) != {x, y}] + [(x, y)]
    else:
        plan = all_pairs(site)
    if how == "no-class":
        site.truth.unknown.add("*")
    site.pairs(plan, rng.choice((1, 3)))
    return site.case()


@family("net-three-ports-{share}", [dict(share=s) for s in (0.5, 0.75)])
def three_ports(rng, seed, share):
    site = hosts(10, seed)
    for node in site.some(3):
        site.ports.slow(node, 0, share)
        site.truth.port(node, 0)
    site.pairs(all_pairs(site), 2)
    return site.case()


@family("net-one-matching-{share}", [dict(share=s) for s in (0.5, 0.25)])
def one_matching(rng, seed, share):
    """Each host met one other: the slow pair can be named, neither end of it."""
    site = hosts(10, seed)
    node = site.some()[0]
    plan = matchings(site, 1)
    site.ports.slow(node, 0, share)
    a, b = next(m for m in plan if node in m)
    site.truth.way(a, b).soft = True
    site.truth.may("degraded", "unknown", "failed")
    site.pairs(plan, 3)
    return site.case()


@family("net-way-{share}-{ways}", [dict(share=s, ways=w) for s in (0.5, 0.8) for w in ("both", "one")])
def slow_way(rng, seed, share, ways):
    """One way through the fabric; both ports are fine with all others."""
    site = hosts(8, seed)
    a, b = site.some(2)
    site.ports.path[(a, b, 0)] = share
    if ways == "both":
        site.ports.path[(b, a, 0)] = share
    site.truth.way(a, b)
    site.pairs(all_pairs(site), 3)
    return site.case()


@family("net-port-down", [dict()])
def down(rng, seed):
    """A host that no other host reaches, and that reaches none."""
    site = hosts(8, seed)
    node = site.some()[0]
    for other in site.nodes:
        site.ports.path[(node, other, 0)] = site.ports.path[(other, node, 0)] = None
    site.truth.port(node, 0)
    site.pairs(all_pairs(site), 1)
    return site.case()


@family("net-uplink-{share}-of-{count}-leaves", [dict(share=s, count=c) for s in (0.5, 0.75) for c in (2, 3)])
def uplink(rng, seed, share, count):
    """A leaf whose uplinks carry less: its hosts are fine with each other."""
    site = leaves(seed, count, uplink=share)
    kinds = frozenset({"leaf"} if count > 2 else {"leaf", "boundary", "plane", "domain", "instrument"})
    site.truth.add(Fault("uplink of leaf0", [[Pattern(kinds)]], set()))
    for a, b in all_pairs(site):
        if (site.ports.leaf[a] == "leaf0") != (site.ports.leaf[b] == "leaf0"):
            site.truth.allow(NAMES, ends_of=(a, b))
    site.truth.may("degraded", "failed", "unknown")
    site.truth.unknown.add("*")
    return site.case()


@family("net-storm-{readings}-readings", [dict(readings=r) for r in (1, 3)])
def storm(rng, seed, readings):
    """Pauses everywhere: one reading in three is 30 % low, at any port. No port is to blame."""
    site = hosts(8, seed, noise=Noise(sigma=0.005, tail=0.33, dip=0.3))
    site.truth.may("unknown", "degraded")
    site.truth.unknown.add("*")
    for a, b in all_pairs(site):
        site.truth.allow(NAMES, ends_of=(a, b))
    site.pairs(all_pairs(site), readings)
    return site.case()


@family("net-port-half-and-link-{lost}-lost", [dict(lost=k) for k in (1, 4)])
def port_and_link(rng, seed, lost):
    """A port of one box, NVLinks of another."""
    site = boxes(HGX_H200, 6, seed)
    a, b = site.some(2)
    gpu = site.gpu()
    site.fabric.lose_links(a, gpu, lost)
    site.truth.gpu(a, gpu)
    site.locals(3)
    site.claim_rails(1)
    site.network(1, NDR)
    site.ports.slow(b, 0, 0.5)
    site.truth.port(b, 0)
    site.pairs(all_pairs(site), 2)
    return site.case()
