"""Defects of outputs: errors, wrong data, truncation, waived tests, duplicates, holes, foreign files, names, order of ranks."""
from fleet import boxes, rack, record_boxes, record_rack
from kinds import family
from noise import NORMAL, Noise
from platforms import GB200, HGX_A100, HGX_B200, HGX_H100
from truth import Fault, Pattern

ERRORS = {"ecc": "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error encountered",
          "nvlink": "[CUDA_ERROR_NVLINK_UNCORRECTABLE] uncorrectable NVLink error detected during the execution",
          "illegal": "[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was encountered"}
WHERE = " in expression cuStreamSynchronize(stream) in waitForCompletion() : /src/nvbandwidth/memcpy.cpp:214\n"
CORRUPT = ("Invalid value when checking the pattern at 0x7f2a40000040\n Current offset [ 64/536870912]\n"
           "[ASSERT] in expression h_errorFlag == 0 in memcmpPattern() : /src/nvbandwidth/kernels.cu:131\n")


def cut(text, test, tail=""):
    """Output that ends in the middle of a test."""
    return text[:text.index("Running %s." % test)] + "Running %s.\n" % test + tail


def broken(site, node, name):
    return site.truth.add(Fault("%s of %s" % (name, node), [[Pattern(frozenset({"node", "gpu", "tray", "direction", "pair"}), node)]], {node}))


@family("error-{error}-{platform}", [dict(platform=p, error=e) for p in (HGX_H100, HGX_B200) for e in ERRORS])
def error_box(rng, seed, platform, error):
    site = boxes(platform, 4, seed, claim=rng.random() < 0.5)
    node = site.some()[0]
    site.locals(2)
    for k in range(2):
        path = "nodes/%s/nvbandwidth-%d.txt" % (node, k)
        site.files[path] = cut(site.files[path], "device_to_device_memcpy_read_ce", ERRORS[error] + WHERE)
    broken(site, node, "error")
    return site.case()


@family("error-{error}-in-a-tray", [dict(error=e) for e in ("ecc", "nvlink")])
def error_tray(rng, seed, error):
    """The node cannot take part in the run over the domain, which then ran without it."""
    site = rack(GB200, 6, seed)
    node = site.some()[0]
    site.locals(1)
    path = "nodes/%s/nvbandwidth-0.txt" % node
    site.files[path] = cut(site.files[path], "device_to_device_memcpy_read_ce", ERRORS[error] + WHERE)
    broken(site, node, "error")
    site.multi(2, nodes=[n for n in site.nodes if n != node])
    return site.case()


@family("error-in-a-run-over-the-domain-{when}", [dict(when=w) for w in ("all-readings", "one-of-three")])
def error_domain(rng, seed, when):
    """A rank reports an error; the others were stopped by it and are unknown at worst."""
    site = rack(GB200, 5, seed)
    node = site.some()[0]
    site.locals(1)
    site.multi(3)
    for k in range(3 if when == "all-readings" else 1):
        path = "domains/block01/multinode-%d.txt" % k
        line = "[CUDA_ERROR_INVALID_HANDLE] invalid resource handle in expression cuMemImportFromShareableHandle(...) in import() : " \
               "/src/nvbandwidth/multinode_memcpy.cpp:88 on %s, rank = %d\n" % (node, 4 * site.nodes.index(node))
        site.files[path] = cut(site.files[path], "multinode_device_to_device_memcpy_read_ce", line)
    site.truth.node(node, range(4), must=False, kinds=("node", "tray", "gpu"))
    site.truth.unknown.add("*")
    site.truth.may("unknown", "failed", "degraded")
    if when != "all-readings":
        site.truth.may("unknown", "failed", "degraded", "pass")
    return site.case()


@family("corrupt-{tool}", [dict(tool=t) for t in ("nvbandwidth", "nccl")])
def corrupt(rng, seed, tool):
    """Wrong data is a failure at any rate."""
    site = boxes(HGX_H100, 4, seed, claim=rng.random() < 0.5)
    node = site.some()[0]
    site.locals(2)
    if tool == "nvbandwidth":
        path = "nodes/%s/nvbandwidth-0.txt" % node
        site.files[path] = cut(site.files[path], "device_to_device_memcpy_write_ce", CORRUPT)
    for name in site.nodes:
        if tool == "nccl":
            site.files["nodes/%s/nccl.txt" % name] = site.nccl([(name, g) for g in range(8)], wrong=3 if name == node else 0)
    broken(site, node, "wrong data")
    return site.case()


@family("corrupt-nccl-over-the-rack", [dict()])
def corrupt_rack(rng, seed):
    """Sixteen ranks, wrong sums: one rank caused them, and the output does not name it."""
    site = rack(GB200, 4, seed)
    site.files["domains/block01/nccl.txt"] = site.nccl(site.fabric.parts(), level=830.0, wrong=7)
    site.truth.add(Fault("wrong data", [[Pattern(frozenset({"domain", "instrument", "boundary"}))]], set(), must=False))
    site.truth.unknown.add("*")
    site.truth.may("failed", "degraded", "unknown")
    return record_rack(site, 2)


@family("truncated-{what}-{platform}", [dict(platform=p, what=w) for p in (HGX_A100, HGX_H100) for w in ("only-reading", "one-of-three", "mid-row")])
def truncated(rng, seed, platform, what):
    site = boxes(platform, 4, seed, claim=rng.random() < 0.5)
    node = site.some()[0]
    readings = 3 if what == "one-of-three" else 1
    site.locals(readings)
    path = "nodes/%s/nvbandwidth-0.txt" % node
    text = site.files[path]
    if what == "mid-row":
        at = text.index("Running device_to_device_memcpy_read_ce")
        site.files[path] = text[:at + 420]
    else:
        site.files[path] = cut(text, "device_to_device_memcpy_read_ce")
    if what == "one-of-three":
        site.truth.may("pass", "unknown")
        site.truth.unknown.add(node)
    else:
        site.truth.may("unknown")
        site.truth.unknown.add(node)
        site.truth.must_unknown.add(node)
    return site.case()


@family("truncated-and-links-{lost}-lost-elsewhere", [dict(lost=k) for k in (1, 4)])
def truncated_and(rng, seed, lost):
    site = boxes(HGX_H100, 5, seed)
    cutoff, sick = site.some(2)
    gpu = site.gpu()
    site.fabric.lose_links(sick, gpu, lost)
    site.truth.gpu(sick, gpu)
    site.locals(2)
    for k in range(2):
        path = "nodes/%s/nvbandwidth-%d.txt" % (cutoff, k)
        site.files[path] = cut(site.files[path], "device_to_device_memcpy_read_ce")
    site.truth.unknown.add(cutoff)
    site.truth.must_unknown.add(cutoff)
    return site.case()


@family("waived-copies-on-one-node", [dict()])
def waived(rng, seed):
    """The tool reports that copies between GPUs do not apply: not measured."""
    site = boxes(HGX_H100, 4, seed)
    node = site.some()[0]
    site.locals(1)
    site.files["nodes/%s/nvbandwidth-0.txt" % node] = site.local(node, tests=(), tail="Waived: \n" * 4)
    site.truth.may("unknown")
    site.truth.unknown.add(node)
    site.truth.must_unknown.add(node)
    return site.case()


@family("healthy-holes-{percent}pc-{platform}", [dict(platform=p, percent=k) for p in (HGX_H100, GB200) for k in (5, 20, 40)], healthy=True)
def holes(rng, seed, platform, percent):
    site = rack(platform, 5, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    dig(site, rng, percent)
    site.truth.unknown.add("*")
    site.truth.may("pass", "unknown")
    return record_rack(site, 2) if platform.rack > 1 else record_boxes(site, 2)


def dig(site, rng, percent, node=None):
    for a in site.fabric.parts():
        for b in site.fabric.parts():
            if a != b and rng.random() < percent / 100.0:
                site.holes.add((a, b))


@family("links-{lost}-among-20pc-holes-{platform}", [dict(platform=p, lost=k) for p in (HGX_B200, GB200) for k in (1, 4)])
def holes_and(rng, seed, platform, lost):
    site = rack(platform, 5, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    dig(site, rng, 20)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    site.truth.unknown.add("*")
    return record_rack(site, 3) if platform.rack > 1 else record_boxes(site, 3)


@family("healthy-same-file-twice-{what}", [dict(what=w) for w in ("calm", "with-a-dip")], healthy=True)
def twice(rng, seed, what):
    """A copied file is not a second reading."""
    site = boxes(HGX_H100, 4, seed, NORMAL)
    node = site.some()[0]
    if what == "with-a-dip":
        a, b = rng.sample(range(8), 2)
        site.fabric.path[((node, a), (node, b))] = 0.85
        site.files["nodes/%s/nvbandwidth-0.txt" % node] = site.local(node, tests=("write",))
        site.fabric.path.clear()
        site.truth.allow(("pair", "direction"), node)
        site.truth.unknown.add(node)
        site.truth.may("pass", "unknown")
    else:
        site.files["nodes/%s/nvbandwidth-0.txt" % node] = site.local(node)
    for name in site.nodes:
        if name != node:
            site.files.setdefault("nodes/%s/nvbandwidth-0.txt" % name, site.local(name))
    for k in (1, 2, 3):
        site.files["nodes/%s/copy-%d.txt" % (node, k)] = site.files["nodes/%s/nvbandwidth-0.txt" % node]
    return site.case()


@family("healthy-foreign-files-{platform}", [dict(platform=p) for p in (HGX_H100, GB200)], healthy=True)
def foreign(rng, seed, platform):
    site = rack(platform, 4, seed) if platform.rack > 1 else boxes(platform, 4, seed)
    node = site.some()[0]
    site.files["nodes/%s/notes.md" % node] = "# To do\n\nReplace the fan. Bandwidth was 3 GB/s on Tuesday, Device 0: busy.\n"
    site.files["nodes/%s/shot.png" % node] = b"\x89PNG\r\n\x1a\n" + bytes(rng.randrange(256) for _ in range(400))
    site.files["nodes/%s/syslog" % node] = "Nov 23 10:00:01 %s kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n" % node * 20
    site.files["nodes/%s/empty.txt" % node] = ""
    site.truth.may("pass", "unknown")
    site.truth.unknown.add(node)
    return record_rack(site, 2) if platform.rack > 1 else record_boxes(site, 2)


@family("healthy-ranks-shuffled", [dict()], healthy=True)
def shuffled(rng, seed):
    return record_rack(rack(GB200, 5, seed), 2, order=rng.shuffle)


@family("ranks-shuffled-links-{lost}-lost", [dict(lost=k) for k in (1, 4)])
def shuffled_and(rng, seed, lost):
    site = rack(GB200, 5, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    return record_rack(site, 3, order=rng.shuffle)


@family("healthy-long-names-in-{where}", [dict(where=w) for w in ("outputs", "claims")], healthy=True)
def long_names(rng, seed, where):
    """node0001.cluster.local is node0001."""
    site = rack(GB200, 4, seed)
    case = record_rack(site, 2)
    for path in list(case.files):
        if (where == "outputs") == path.startswith("domains/") and (where == "outputs" or path == "claims.toml"):
            for node in site.nodes:
                case.files[path] = case.files[path].replace(node, node + ".cluster.local")
    if where == "claims":
        site.truth.unknown.add("*")
        site.truth.may("pass", "unknown")
    return case


@family("healthy-domain-in-pairs-of-nodes", [dict()], healthy=True)
def in_pairs(rng, seed):
    """Many small runs instead of a large one."""
    return pieces(rack(GB200, 5, seed)).case()


@family("domain-in-pairs-of-nodes-links-{lost}-lost", [dict(lost=k) for k in (1, 4)])
def in_pairs_and(rng, seed, lost):
    site = rack(GB200, 5, seed)
    node, gpu = site.some()[0], site.gpu()
    site.fabric.lose_links(node, gpu, lost)
    site.truth.gpu(node, gpu)
    return pieces(site).case()


def pieces(site):
    site.locals(1)
    for i, a in enumerate(site.nodes):
        for b in site.nodes[i + 1:]:
            for k in range(2):
                site.files["domains/block01/%s-%s-%d.txt" % (a, b, k)] = site.multinode(k, 2, nodes=[a, b])
    return site


@family("garbage-instead-of-numbers", [dict()])
def garbage(rng, seed):
    """Rows of a matrix are unreadable on one node, the only reading it has."""
    site = boxes(HGX_H100, 4, seed, Noise(sigma=0.003))
    node = site.some()[0]
    site.locals(1)
    path = "nodes/%s/nvbandwidth-0.txt" % node
    head, tail = site.files[path].split("Running device_to_device_memcpy_read_ce.", 1)
    site.files[path] = head + "Running device_to_device_memcpy_read_ce." + tail.replace("39", "#?").replace("38", "!x")
    site.truth.may("unknown")
    site.truth.unknown.add(node)
    site.truth.must_unknown.add(node)
    return site.case()
