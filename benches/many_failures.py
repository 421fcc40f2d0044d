"""Fleets with thousands of simultaneous faults, through every stage, timed.

For ci/bench-scale --failures. The same fault in a fleet and in one of four times
the nodes: a stage that takes about four times as long or more is not linear. Every stage
is a command of the program itself, on simulated nodes that answer inside it.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time

from scale import CELLS, NODES, Failed, Fleet, boxes, racks


def node(number):
    return f"hgx{number:05}"


def tray(number):
    return f"r{(number - 1) // 18 + 1:04}n{(number - 1) % 18 + 1:02}"


def fault(kind, **fields):
    words = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    return f'[[fault]]\nkind = "{kind}"\n{words}'


def leaf_lost(number):
    """No node of the first leaf is reached over any rail."""
    down = (fault("rail-down", node=node(at), rail=rail) for at in range(1, 33) for rail in range(8))
    return boxes(number, 32, "".join(down))


def half_slow(number):
    """Every second node has a GPU that lost a link, and a NIC at half rate."""
    slow = (
        fault("lost-links", gpu=f"{node(at)}:2") + fault("rail-rate", node=node(at), rail=1, share=0.5)
        for at in range(1, number + 1, 2)
    )
    return boxes(number, 32, "".join(slow))


def none_reached(number):
    """No node is reached."""
    return boxes(number, 32, "".join(fault("unreachable", node=node(at)) for at in range(1, number + 1)))


def garbage(number):
    """The measuring tools print unreadable output on every node."""
    tools = ("nvbandwidth", "all_reduce_perf")
    odd = (fault("tool-garbage", node=node(at), tool=tool) for at in range(1, number + 1) for tool in tools)
    return boxes(number, 32, "".join(odd))


def racks_slow(number):
    """In racks of 18, every second tray has a GPU that lost a link."""
    slow = (fault("lost-links", gpu=f"{tray(at)}:1") for at in range(1, number + 1, 2))
    return racks(number // 18, "".join(slow))


def sources_apart(number):
    """No part is slow, and labels and topology put every second tray into the next rack."""
    return racks(number // 18, "")


DAYS = {
    "a leaf is lost": leaf_lost,
    "half of all nodes are slow": half_slow,
    "no node is reached": none_reached,
    "nothing can be read": garbage,
    "half of all trays are slow": racks_slow,
    "sources contradict each other": sources_apart,
}


def other_sources(place, number):
    """A topology of Slurm and labels of Kubernetes that are wrong about every second node."""
    count = number // 18
    blocks = {f"rack{rack:04}": [] for rack in range(1, count + 1)}
    items = []
    for at in range(1, count * 18 + 1):
        rack = (at - 1) // 18 + 1
        reported = rack % count + 1 if at % 2 else rack
        blocks[f"rack{reported:04}"].append(tray(at))
        labels = {
            "nvidia.com/gpu.clique": f"{reported:08x}-c8aa-45e1-9e07-e1e51be99c31.1",
            "nvidia.com/gpu.product": "NVIDIA-GB200",
            "nvidia.com/gpu.count": "4",
        }
        items.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": tray(at), "labels": labels}})
    with open(f"{place}/topology.yaml", "w") as file:
        file.write("- topology: default\n  cluster_default: true\n  block:\n    block_sizes: [18]\n    blocks:\n")
        for name, nodes in blocks.items():
            file.write(f"      - block: {name}\n        nodes: {','.join(nodes)}\n")
    with open(f"{place}/nodes.json", "w") as file:
        json.dump({"apiVersion": "v1", "kind": "NodeList", "items": items}, file)
    return ["claims.toml", "topology.yaml", "nodes.json"]


class Day(Fleet):
    """One case of simultaneous faults in one fleet."""

    def __init__(self, program, name, number, place):
        is_apart = DAYS[name] is sources_apart
        sources = (lambda at: other_sources(at, number)) if is_apart else None
        super().__init__(program, number, place, 1, DAYS[name](number), sources)
        self.name = name

    def run(self):
        config = ["--config", f"{self.place}/fabricgate.toml"]
        # Every case has an answer; if no node passed there is nothing to export (2).
        codes = (0, 2, 3, 4, 5, 6)
        self.stage("claims", NODES, ["claims", *config, "--json"], codes, f"{self.place}/claims.json")
        with open(f"{self.place}/claims.json") as file:
            claims = json.load(file)["claims"]
        self.counts = {"disagreements": len(claims.get("disagreements", []))}
        self.stage("audit, all stages", NODES, ["audit", *config, "--json", "--no-progress"], codes)
        run = self.folder()
        with open(f"{run}/verdicts.json") as file:
            verdicts = json.load(file)
        self.counts["findings"] = len(verdicts["findings"])
        self.counts["not passed"] = sum(it["outcome"] != "pass" for it in verdicts["nodes"])
        self.counts["not known"] = len(verdicts["unknown"])
        first = tray(1) if self.name in ("half of all trays are slow", "sources contradict each other") else node(1)
        self.after(run, config, codes, first)


def compare(days):
    small, large = days
    print(f"\n| {large.name} | {small.nodes:,} nodes | {large.nodes:,} nodes | ratio |\n|---|---|---|---|")
    for name in large.took:
        if name not in small.took:
            continue
        cells = [f"{day.took[name][2]:.2f} s, {day.took[name][3]:.0f} MiB" for day in days]
        grown = large.took[name][2] / max(small.took[name][2], 0.01)
        print(f"| {name} | {cells[0]} | {cells[1]} | {grown:.1f} |")
    for what in large.counts:
        print(f"| {what} | {small.counts[what]:,} | {large.counts[what]:,} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--nodes", default="2500,10000", help="the two sizes of a fleet")
    parser.add_argument("--days", default="", help="words in the names of the days that are wanted")
    parser.add_argument("--keep", help="keeps the run folders in this folder")
    args = parser.parse_args()
    scratch = args.keep or tempfile.mkdtemp()
    sizes = [int(number) for number in args.nodes.split(",")]
    try:
        for at, name in enumerate(DAYS):
            if not any(word in name for word in args.days.split(",")):
                continue
            print(f"{name}: {DAYS[name].__doc__}", flush=True)
            days = []
            for number in sizes:
                # Racks have 18 nodes: a multiple of that.
                number = number // 18 * 18 if DAYS[name] in (racks_slow, sources_apart) else number
                day = Day(args.program, name, number, f"{scratch}/{at}-{number}")
                try:
                    day.run()
                except Failed as why:
                    print(f"  failed: {why}")
                days.append(day)
                if not args.keep:
                    shutil.rmtree(day.place, ignore_errors=True)
            if len(days) == 2 and all(day.took for day in days):
                compare(days)
        load = os.getloadavg()[0]
        print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, load {load:.1f}, processor time of one run each")
    finally:
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)


main()
