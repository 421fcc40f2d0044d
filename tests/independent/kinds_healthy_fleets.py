"""Healthy fleets of several sorts together: racks of different levels, racks next to boxes and hosts, odd numbers of files."""
from fleet import Site, boxes, rack, record_boxes, record_rack
from kinds import family
from kinds_network import all_pairs, hosts, matchings
from noise import NORMAL, ROUGH, Noise
from platforms import GB200, GB300, HDR, HGX_A100, HGX_B200, HGX_H100, HGX_H200, NDR


def merge(seed, sites):
    """One folder of several sites; claims of all or of none."""
    whole = Site(GB200, 0, seed, NORMAL)
    for site in sites:
        whole.nodes = whole.nodes + site.nodes
        whole.files.update(site.files)
        whole.claim += site.claim
        whole.truth.unknown |= site.truth.unknown
    return whole


def named_rack(platform, k, count, seed, noise=NORMAL):
    site = rack(platform, count, "%s/%d" % (seed, k), noise, claim=False, domain="block%02d" % k)
    site.nodes[:] = ["r%02dn%02d" % (k, i) for i in range(count)]
    site.fabric.nodes[:] = site.nodes
    site.claim_domain(site.domain, site.nodes)
    return site


@family("healthy-{racks}-racks-{apart}pc-apart-{platform}", healthy=True,
        rows=[dict(platform=p, racks=r, apart=a) for p in (GB200, GB300) for r in (2, 3) for a in (0, 1, 2)])
def racks_apart(rng, seed, platform, racks, apart):
    """Racks with different drivers differ slightly; each is uniform in itself."""
    sites = []
    for k in range(racks):
        site = named_rack(platform, k, 3, seed)
        if k == 0 and apart:
            site.default_driver = "565.57.01"
            for node in site.nodes:
                site.fabric.node_share[node] = 1 - apart / 100.0
        record_rack(site, 2)
        sites.append(site)
    whole = merge(seed, sites)
    if apart >= 2:
        whole.truth.may("pass", "unknown")
        whole.truth.unknown.add("*")
    return whole.case()


@family("healthy-rack-beside-{other}", [dict(other=o) for o in ("boxes", "hosts", "both")], healthy=True)
def beside(rng, seed, other):
    sites = [named_rack(GB200, 1, 4, seed)]
    record_rack(sites[0], 2)
    if other != "hosts":
        site = boxes(HGX_H100, 4, seed + "b")
        record_boxes(site, 2)
        sites.append(site)
    if other != "boxes":
        site = hosts(6, seed + "h")
        site.pairs(all_pairs(site), 2)
        sites.append(site)
    return merge(seed, sites).case()


@family("healthy-uneven-readings-{platform}", [dict(platform=p) for p in (HGX_A100, HGX_H100, HGX_H200, HGX_B200)], healthy=True)
def uneven(rng, seed, platform):
    """Some nodes were read once, some five times."""
    site = boxes(platform, 5, seed, claim=rng.random() < 0.5)
    for node in site.nodes:
        many = rng.choice((1, 2, 5))
        for k in range(many):
            site.files["nodes/%s/nvbandwidth-%d.txt" % (node, k)] = site.local(node, k, many)
    return site.case()


@family("healthy-one-test-a-file-{platform}", [dict(platform=p) for p in (HGX_H100, HGX_B200, GB200)], healthy=True)
def piecemeal(rng, seed, platform):
    site = rack(platform, 4, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    for node in site.nodes:
        for test in ("read", "write"):
            for k in range(2):
                site.files["nodes/%s/%s-%d.log" % (node, test, k)] = site.local(node, k, 2, tests=(test,), host=test == "read")
    if platform.rack > 1:
        for test in ("read", "write"):
            site.files["domains/block01/%s.log" % test] = site.multinode(0, 1, tests=(test,))
    return site.case()


@family("healthy-rough-collectives-{platform}", [dict(platform=p) for p in (HGX_A100, HGX_H200, HGX_B200)], healthy=True)
def rough_collectives(rng, seed, platform):
    site = boxes(platform, 5, seed, ROUGH)
    for node in site.nodes:
        for k in range(2):
            site.files["nodes/%s/ar-%d.txt" % (node, k)] = site.nccl([(node, g) for g in range(platform.gpus)])
    return record_boxes(site, 3)


@family("healthy-collective-of-{ranks}-of-8-{platform}", [dict(platform=p, ranks=n) for p in (HGX_H200, HGX_B200) for n in (2, 4)], healthy=True)
def few_ranks(rng, seed, platform, ranks):
    """With four GPUs or fewer the collective does not use the switch's arithmetic: three quarters of the rate is the maximum."""
    site = boxes(platform, 3, seed)
    for node in site.nodes:
        level = platform.allreduce * (0.757 if platform is HGX_H200 else 0.80)
        site.files["nodes/%s/ar.txt" % node] = site.nccl([(node, g) for g in range(ranks)], level=level)
    site.truth.may("pass", "unknown")
    site.truth.unknown.add("*")
    return record_boxes(site, 2)


@family("healthy-net-{rate}-{nic}-{plan}-{noise}", healthy=True,
        rows=[dict(rate=r, nic=n, plan=p, noise=z) for r, n in (("ndr", "class"), ("ndr", "no-class"), ("hdr", "no-class"))
              for p in ("all", "3-matchings") for z in ("calm", "rough")])
def plans(rng, seed, rate, nic, plan, noise):
    site = hosts(rng.choice((7, 8, 10)), seed, rate=NDR if rate == "ndr" else HDR, nic="nic-ndr-400" if nic == "class" else None,
                 noise=Noise(sigma=0.002) if noise == "calm" else Noise(sigma=0.01, gpu=0.004, run=0.005))
    if nic == "no-class":
        site.truth.may("pass", "unknown")
        site.truth.unknown.add("*")
    site.pairs(all_pairs(site) if plan == "all" else matchings(site, 3), 2)
    return site.case()


@family("healthy-one-node-cut-short-in-one-of-three-{platform}", [dict(platform=p) for p in (HGX_B200, HGX_H200)], healthy=True)
def cut_short(rng, seed, platform):
    """Two runs remain next to one that was stopped."""
    site = boxes(platform, 4, seed)
    site.locals(3)
    node = site.some()[0]
    path = "nodes/%s/nvbandwidth-2.txt" % node
    text = site.files[path]
    site.files[path] = text[:text.index("SUM device_to_device_memcpy_read_ce") - 300]
    site.truth.may("pass", "unknown")
    site.truth.unknown.add(node)
    return site.case()
