"""Checks the writers' files: `fabricgate parse` must read each of them completely, with the original numbers."""
import json
import os
import subprocess
import tempfile

import render_nccl
import render_network
import render_nvbandwidth as nvb
import render_p2p
import render_smi
from platforms import GB200, HGX_H200

TABLE = [[None if r == c else 390.0 + r + c / 10 for c in range(4)] for r in range(4)]
FULL = [[2500.0 if r == c else 370.0 + r + c / 10 for c in range(4)] for r in range(4)]
RANKS = [("node%04d" % (i // 4), i % 4, "NVIDIA GB200") for i in range(4)]
READ, WRITE = "device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_sm"


def numbers(document):
    """All parsed numbers: cells, busbw or algbw of points."""
    out = []
    for m in document.get("measurements", []):
        for row in m.get("cells", []):
            out += [v for v in row if v is not None]
        out += [p.get("busbw") if p.get("busbw") is not None else p.get("algbw") for p in m.get("points", [])]
    return out


def samples():
    """Name: (text, tool, numbers that must be among the parsed ones)."""
    flat = [v for row in TABLE for v in row if v is not None]
    devices = ["NVIDIA H200"] * 4
    out = {}
    for version in ("0.4", "0.6", "0.8"):
        out["nvbandwidth %s" % version] = nvb.text([(READ, TABLE), (WRITE, TABLE)], version, devices=devices, host="h"), "nvbandwidth", flat * 2
    out["nvbandwidth both ways"] = (nvb.text([("device_to_device_bidirectional_memcpy_read_ce", TABLE, TABLE)], devices=devices, host="h"),
                                    "nvbandwidth", flat * 2 + [2 * v for v in flat])
    out["nvbandwidth ranks"] = nvb.text([("multinode_" + READ, TABLE)], ranks=RANKS), "nvbandwidth", flat
    out["nvbandwidth json"] = nvb.as_json([(READ, TABLE)], devices=devices), "nvbandwidth", flat
    latency = lambda us: [[us] * 4 for _ in range(4)]
    out["p2p"] = render_p2p.text(devices, FULL, FULL, FULL, FULL, latency), "p2pBandwidthLatencyTest", [v for row in FULL for v in row] * 4
    for kind in render_nccl.FACTORS:
        out["nccl " + kind] = (render_nccl.text(kind, RANKS, 480.0, lambda: 1.0), "nccl-tests",
                               [480.0 * s for _, s in render_nccl.SIZE_SHARE for _ in "io"])
    out["perftest"] = render_network.text(391.25), "perftest", [391.25]
    out["perftest MB"] = render_network.text(391.25, unit="MB/sec"), "perftest", [391.25e9 / 8 / (1 << 20)]
    out["nvlink -s"] = render_smi.nvlink(HGX_H200, "h", 8, {2: 3}), "nvidia-smi-nvlink", []
    out["topo -m"] = render_smi.topo(HGX_H200, 8, nics=4), "nvidia-smi-topo", []
    out["smi -q"] = render_smi.query(GB200, "h", 4, cluster="3c1f9a52-7d3e-4f3b-9a56-1f0be8d1aa01", clique=7), "nvidia-smi-q", []
    return out


def check(binary, name, text, tool, want):
    with tempfile.TemporaryDirectory(prefix="parsing-") as folder:
        path = os.path.join(folder, "out.txt")
        with open(path, "w") as out:
            out.write(text)
        done = subprocess.run([binary, "parse", "--json", path], capture_output=True)
    try:
        document = json.loads(done.stdout.splitlines()[0])
    except (ValueError, IndexError):
        return "no document: " + done.stderr.decode("utf-8", "replace")[:200]
    if document.get("tool") != tool:
        return "read as %s" % document.get("tool")
    if not document.get("complete") or document.get("problems"):
        return "not complete: %s" % document.get("problems")
    rest = sorted(numbers(document))
    for value in want:
        near = min(rest, key=lambda x: abs(x - value), default=None)
        if near is None or abs(near - value) > 0.011:
            return "%.3f was written and not read" % value
        rest.remove(near)
    return ""


def main(binary):
    failed = 0
    cases = samples()
    for name, (text, tool, want) in cases.items():
        wrong = check(binary, name, text, tool, want)
        failed += bool(wrong)
        print("%-28s %s" % (name, wrong or "%d numbers" % len(want)))
    print("%d passed, %d failed" % (len(cases) - failed, failed))
    return 1 if failed else 0
