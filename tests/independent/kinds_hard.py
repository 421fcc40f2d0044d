"""One fault under conditions that make it harder to see: mixed drivers, holes, tails, order, other outputs, another node's trouble."""
from fleet import boxes, rack
from kinds import family
from kinds_outputs import cut, dig
from kinds_several import afflict
from noise import NORMAL, Noise
from platforms import GB200, HGX_H200

FAULTS = ("link", "links4", "tx", "pair", "tray", "host")
TROUBLES = ("drivers-1pc", "holes-10pc", "tails", "uneven", "node-cut-off", "copied", "foreign", "offsets", "shuffled", "few-readings")


@family("{fault}-and-{trouble}-{platform}", [dict(platform=p, fault=f, trouble=t) for p in (HGX_H200, GB200) for f in FAULTS for t in TROUBLES])
def hard(rng, seed, platform, fault, trouble):
    noise = {"tails": Noise(sigma=0.003, tail=0.01), "offsets": Noise(sigma=0.003, gpu=0.004, node=0.003)}.get(trouble, NORMAL)
    site = rack(platform, 6, seed, noise) if platform.rack > 1 else boxes(platform, 5, seed, noise, claim=rng.random() < 0.5)
    taken = set()
    afflict(site, rng, fault, taken)
    if trouble == "drivers-1pc":
        for node in site.some(2):
            site.driver[node] = "550.54.15"
            site.fabric.node_share[node] = site.fabric.node_share.get(node, 1.0) * 0.99
    if trouble == "holes-10pc":
        dig(site, rng, 10)
        site.truth.unknown.add("*")
        if fault == "pair":   # its only cells may be among the holes
            site.truth.faults[-1].must = False
            site.truth.may("degraded", "failed", "unknown", "pass")
    readings = 1 if trouble == "few-readings" and fault in ("links4", "tray") else 2 if trouble == "few-readings" else 3
    record(site, rng, trouble, readings)
    untouched = [n for n in site.nodes if n not in taken]
    trouble_with_files(site, rng, trouble, rng.choice(untouched))
    return site.case()


def record(site, rng, trouble, readings):
    for node in site.nodes:
        many = rng.choice((2, 4)) if trouble == "uneven" else readings
        for k in range(many):
            site.files["nodes/%s/nvbandwidth-%d.txt" % (node, k)] = site.local(node, k, many)
    if site.platform.rack > 1:
        site.multi(readings, **(dict(order=rng.shuffle) if trouble == "shuffled" else {}))


def trouble_with_files(site, rng, trouble, node):
    """The files of a healthy node have a defect."""
    paths = [p for p in site.files if p.startswith("nodes/%s/" % node)]
    if trouble == "node-cut-off":
        for path in paths:
            site.files[path] = cut(site.files[path], "device_to_device_memcpy_read_ce")
        site.truth.unknown.add(node)
        site.truth.must_unknown.add(node)
    elif trouble == "copied":
        for path in paths:
            site.files[path.replace(".txt", "-again.txt")] = site.files[path]
    elif trouble == "foreign":
        site.files["nodes/%s/dmesg" % node] = "[   12.000000] nvidia-nvlink: Nvlink Core is being initialized, major device number 510\n"
        site.files["nodes/%s/core" % node] = bytes(rng.randrange(256) for _ in range(300))
        site.truth.unknown.add(node)
