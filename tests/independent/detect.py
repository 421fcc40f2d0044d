"""Sweeps of faults of known size against the smallest size that the judge declares detectable, and sweeps without any fault."""
import itertools
import time
from concurrent.futures import ProcessPoolExecutor

import score
from fleet import Site, boxes, rack
from noise import Noise
from platforms import GB200, HGX_H100, NDR, NETWORK
from truth import BAD

FACTORS = (1.0, 1.1, 1.2, 1.5)
LEAST = {1.0: 0.98, 1.1: 0.99, 1.2: 0.99, 1.5: 0.99}
SWEEPS = {
    "box, sigma 0.3 %, GPUs alike to 0.1 %": ("box", Noise(sigma=0.003, gpu=0.001)),
    "box, sigma 1 %": ("box", Noise(sigma=0.01)),
    "box, GPUs differ by 0.6 %, halves by 0.3 %": ("box", Noise(sigma=0.003, gpu=0.006, far=0.003)),
    "rack of 6, sigma 0.3 %": ("rack", Noise(sigma=0.003)),
    "rack of 6, sigma 2 %": ("rack", Noise(sigma=0.02)),
    "rack of 6, GPUs differ by 0.6 %": ("rack", Noise(sigma=0.003, gpu=0.006)),
    "network, sigma 1 %": ("network", Noise(sigma=0.01)),
    "network, sigma 3 %": ("network", Noise(sigma=0.03)),
}
NOISE_ONLY = {
    "box": (Noise(sigma=0.003, gpu=0.003, tail=0.01), Noise(sigma=0.01, gpu=0.003), Noise(sigma=0.02, run=0.005)),
    "rack": (Noise(sigma=0.003, gpu=0.003, tail=0.01), Noise(sigma=0.01, gpu=0.003), Noise(sigma=0.02, run=0.005)),
    "network": (Noise(sigma=0.01, tail=0.05, dip=0.03), Noise(sigma=0.03, tail=0.05, dip=0.03), Noise(sigma=0.01, gpu=0.005)),
}


def fleet(shape, noise, seed, loss=0.0, node=0, gpu=0):
    """A fleet with a fault of that size, or its healthy twin: the same random numbers."""
    if shape == "network":
        site = Site(NETWORK, 8, seed, noise, stem="h", domain="net")
        site.claim_domain("net", site.nodes, gpus=0, nic="nic-ndr-400")
        site.network(1, NDR)
        site.ports.slow(site.nodes[node], 0, 1 - loss)
        site.pairs(list(itertools.combinations(site.nodes, 2)), 3)
        return site.case()
    site = boxes(HGX_H100, 3, seed, noise) if shape == "box" else rack(GB200, 6, seed, noise)
    if loss:
        site.fabric.slow(site.nodes[node], gpu, 1 - loss)
    if shape == "box":
        site.locals(3, host=False)
    else:
        site.locals(1, host=False)
        site.multi(3)
    return site.case()


def named(verdicts, node, gpu):
    """True if a finding blames that part."""
    for finding in verdicts.get("findings", []):
        locus = finding.get("locus", {})
        if finding.get("outcome") in BAD and locus.get("node") == node and locus.get("kind") != "pair":
            if gpu is None or locus.get("gpu") == gpu:
                return True
    return False


def sweep(job):
    """The declared detectable size of a healthy fleet, the sizes found in its twins, and the number of other parts blamed."""
    binary, name, seed = job
    shape, noise = SWEEPS[name]
    text = "%s/%d" % (name, seed)
    node, gpu = seed % (3 if shape == "box" else 6), seed % (8 if shape == "box" else 4)
    twin = fleet(shape, noise, text)
    verdicts_of_twin = score.judge(binary, twin.files)
    who = twin.nodes[node]
    declared = next((n.get("detectable") for n in verdicts_of_twin.get("nodes", []) if n.get("node") == who), None)
    blamed = sum(f.get("outcome") in BAD for f in verdicts_of_twin.get("findings", []))
    found = {}
    for factor in FACTORS if declared else ():
        verdicts = score.judge(binary, fleet(shape, noise, text, factor * declared, node, gpu).files)
        found[factor] = named(verdicts, who, None if shape == "network" else gpu)
        blamed += sum(n.get("outcome") in BAD and n.get("node") != who for n in verdicts.get("nodes", []))
    return name, declared, found, blamed


def quiet(job):
    """One sweep without a fault: its findings."""
    binary, shape, k, seed = job
    verdicts = score.judge(binary, fleet(shape, NOISE_ONLY[shape][k], "quiet/%s/%d" % (shape, seed)).files)
    bad = [score.place(f) for f in verdicts.get("findings", []) if f.get("outcome") in BAD]
    return shape, k, seed, bad, verdicts.get("outcome", verdicts.get("error"))


def detect(args, pool):
    seeds = args.seeds or 60
    jobs = [(args.binary, name, seed) for name in SWEEPS for seed in range(args.first_seed, args.first_seed + seeds)]
    results = list(pool.map(sweep, jobs, chunksize=2))
    failed = 0
    print("%-46s %9s  %s of %d  healthy blamed" % ("sweep", "declared", " / ".join("%.1f" % f for f in FACTORS), seeds))
    for name in SWEEPS:
        mine = [r for r in results if r[0] == name]
        known = [r[1] for r in mine if r[1]]
        counts = {f: sum(r[2].get(f, False) for r in mine) for f in FACTORS}
        blamed = sum(r[3] for r in mine)
        print("%-46s %7.2f %%  %s  %d" % (name, 100 * sum(known) / max(1, len(known)),
                                         " / ".join(str(counts[f]) for f in FACTORS), blamed))
        failed += sum(counts[f] < LEAST[f] * seeds for f in FACTORS) + (blamed > 0)
    return len(SWEEPS) * (len(FACTORS) + 1), failed


def healthy(args, pool):
    n = args.healthy
    jobs = [(args.binary, shape, seed % 3, seed) for shape in NOISE_ONLY for seed in range(args.first_seed, args.first_seed + n)]
    results = list(pool.map(quiet, jobs, chunksize=4))
    failed = 0
    for shape in NOISE_ONLY:
        mine = [r for r in results if r[0] == shape]
        bad = [r for r in mine if r[3]]
        failed += len(bad)
        outcomes = {o: sum(r[4] == o for r in mine) for o in {r[4] for r in mine}}
        print("%-8s %d sweeps, %d with a finding (%.1f in 1,000), outcomes %s" % (
            shape, len(mine), len(bad), 1000.0 * len(bad) / max(1, len(mine)), outcomes))
        for r in bad[:5]:
            print("    noise %d seed %d: %s" % (r[1], r[2], r[3][0]))
    return len(results), failed


def main(args):
    start = time.time()
    with ProcessPoolExecutor(args.jobs) as pool:
        total, failed = (healthy if args.healthy else detect)(args, pool)
    print("%.0f s" % (time.time() - start))
    print("%d passed, %d failed" % (total - failed, failed))
    return 1 if failed else 0
