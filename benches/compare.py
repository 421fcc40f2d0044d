"""The program compared with the usual alternatives, in one table.

For ci/bench-compare. Both sides get the same inputs on the same machine, in turn,
and the fastest of several runs counts. Prints Markdown; an unavailable side is
named with the reason, and not replaced.
"""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
TABLE = []


def line(what, ours, theirs, ratio):
    TABLE.append(f"| {what} | {ours} | {theirs} | {ratio} |")
    print(TABLE[-1], file=sys.stderr, flush=True)


def fastest(runs, *commands):
    """The least wall seconds of each command, taken in turn, and its output."""
    best, outputs = [None] * len(commands), [""] * len(commands)
    for _ in range(runs):
        for at, (command, codes) in enumerate(commands):
            start = time.perf_counter()
            with tempfile.TemporaryFile("w+") as out:
                code = subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL).returncode
                took = time.perf_counter() - start
                assert code in codes, f"{command[:3]}: exit code {code}"
                out.seek(0)
                outputs[at] = out.read(4000)
            best[at] = took if best[at] is None else min(best[at], took)
    return best, outputs


def rounds(program, scratch):
    """Rounds of pairs: fabricgate's, the minimum, and one pair after the other."""
    fleets = {
        "a rack of 18 nodes": '[[domain]]\nname = "d"\nnodes = "n[01-18]"\nplatform = "gb200-nvl72"\ngpus_per_node = 4\n',
        "a rack of which one node is out (17)":
            '[[domain]]\nname = "d"\nnodes = "n[01-17]"\nplatform = "gb200-nvl72"\ngpus_per_node = 4\n',
        "100 racks of 18": "".join(
            f'[[domain]]\nname = "d{at:03}"\nnodes = "d{at:03}n[01-18]"\nplatform = "gb200-nvl72"\ngpus_per_node = 4\n'
            for at in range(100)
        ),
        "a domain of 128 nodes":
            '[[domain]]\nname = "d"\nnodes = "n[001-128]"\nplatform = "gb200-nvl72"\ngpus_per_node = 4\n',
        "144 nodes behind 8 leaves, one rail": '[[domain]]\nname = "d"\nnodes = "n[001-144]"\ngpus_per_node = 0\n'
            + '[[rail]]\nname = "rail0"\nrdma = "mlx5_0"\n'
            + "".join(
                f'[[leaf]]\nname = "l{at}"\nnodes = "n[{at * 18 + 1:03}-{at * 18 + 18:03}]"\n' for at in range(8)
            ),
    }
    for name, claims in fleets.items():
        network = "leaf" in claims
        probe = "ib-write-bw" if network else "nvbandwidth-lane"
        with open(f"{scratch}/claims.toml", "w") as file:
            file.write(claims)
        with open(f"{scratch}/plan.toml", "w") as file:
            file.write(
                'claims = "claims.toml"\n[launcher]\nkind = "command"\ntemplate = ["ssh", "{node}"]\n'
                f'[probes]\nrun = ["{probe}"]\n[sweep]\nfast_nodes = 128\n'
            )
        profile = "burn-in" if network else "audit"
        output = subprocess.run(
            [program, "plan", profile, "--config", f"{scratch}/plan.toml", "--json"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        plan = json.loads(output.stdout)
        plan = plan.get("plan", plan)
        # The complete stage of the network; the tournament inside domains.
        stages = [s for s in plan["rounds"] if not network or s["stage"] == 5]
        pairs = [step["nodes"] for one in stages for step in one["steps"] if len(step["nodes"]) == 2]
        degree = collections.Counter(node for pair in pairs for node in pair)
        bound = max(degree.values())
        if network:
            # At most two hosts of a leaf communicate across leaves at the same time.
            leaf = {f"n{at:03}": (at - 1) // 18 for at in range(1, 145)}
            away = collections.Counter(
                leaf[node] for pair in pairs if leaf[pair[0]] != leaf[pair[1]] for node in pair
            )
            inside = collections.Counter(
                node for pair in pairs if leaf[pair[0]] == leaf[pair[1]] for node in pair
            )
            bound = max(bound, max(inside.values()), -(-max(away.values()) // 2))
        else:
            # An odd number of nodes: one node idles in every round (Vizing).
            for size in {claims.count("n[01-18]") and 18, claims.count("n[01-17]") and 17}:
                bound = max(bound, size - 1 + size % 2 if size else 0)
        line(
            f"rounds of {name}: {len(pairs):,} pairs", f"{len(stages)} rounds",
            f"at least {bound}; one pair after the other: {len(pairs):,}",
            f"{len(stages) / bound:.2f} of the bound, {len(pairs) / len(stages):,.0f} times fewer than in sequence",
        )


def racks(program, scratch):
    """The racks of ci/bench, recorded."""
    text = (
        'title = "a hundred racks"\nseed = 17\n[noise]\nsigma = 0.002\n[tools]\n'
        'record = ["nvbandwidth", "nvbandwidth-domain"]\n'
        'node_tests = ["host_to_device_memcpy_ce", "device_to_host_memcpy_ce", '
        '"device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce"]\n'
        'domain_tests = ["multinode_device_to_device_memcpy_write_ce"]\n'
    )
    for rack in range(1, 101):
        text += f'[[domain]]\nname = "rack{rack:03}"\nnodes = "r{rack:03}n[01-18]"\nplatform = "gb200-nvl72"\n'
    text += '[[fault]]\nkind = "lost-links"\ngpu = "r042n07:2"\n'
    with open(f"{scratch}/racks.toml", "w") as file:
        file.write(text)
    place = f"{scratch}/racks"
    subprocess.run([program, "sim", "record", f"{scratch}/racks.toml", place], check=True, stderr=subprocess.DEVNULL)
    return place


def judging(program, python, place, runs):
    files = sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names if name.endswith(".txt")
    )
    name = f"reading {len(files):,} outputs of nvbandwidth"
    (ours, theirs), _ = fastest(
        runs, ([program, "parse", "--json", *files], (0,)), ([sys.executable, f"{HERE}/read.py", place], (0,))
    )
    line(
        name, f"`parse --json` {ours:.2f} s, all of it written as JSON",
        f"Python, floats in lists and nothing more: {theirs:.2f} s", f"{theirs / ours:.2f} times as fast",
    )
    name = "judging the same, 100 racks"
    if subprocess.run([python, "-c", "import pandas"], capture_output=True).returncode:
        line(name, "", f"not measured: {python} has no pandas", "")
        return
    (ours, theirs), (verdict, found) = fastest(
        runs, ([program, "judge", place, "--json"], (3,)), ([python, f"{HERE}/judge_pandas.py", place], (0,))
    )
    assert "r042n07" in verdict, "what is timed must be what was meant"
    split, *blamed = found.splitlines()
    line(
        name, f"`judge --json` {ours:.2f} s, read, judged, evidence named",
        f"pandas {theirs:.2f} s ({split}; {len(blamed)} lines about one GPU)", f"{theirs / ours:.1f} times as fast",
    )


def tcp(program, runs):
    if not shutil.which("iperf3"):
        line("TCP between two ends of this machine", "", "not measured: no iperf3 here", "")
        return
    output = subprocess.run(
        [f"{HERE}/../ci/bench-tcp", str(runs), "2", program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    pattern = r"^(.{20})(forward|reverse) +fabricgate +([0-9.]+) GB/s .*iperf3 +([0-9.]+) GB/s .*?([-+][0-9.]+) %$"
    for path, way, ours, theirs, difference in re.findall(pattern, output, re.MULTILINE):
        line(f"TCP, {path.strip()}, {way}", f"{ours} GB/s", f"iperf3 {theirs} GB/s", f"{difference} %")
    if "SKIPPED" in output:
        line("TCP over a veth pair", "", "not measured: namespaces need root", "")


def drains():
    output = subprocess.run([f"{HERE}/../ci/bench-slurm"], stdout=subprocess.PIPE, text=True, check=True).stdout
    turn = re.search(r"(\d+) drains decided in (\S+), \d+ done in (\S+)", output)
    each = re.search(r"(\d+) drains, one call each: ([0-9.]+) s; one call for all: ([0-9.]+) s", output)
    if not turn or not each:
        line("1,000 drains on a real slurmctld of 10,000 nodes", "", "not measured: no lab here", "")
        return
    number, one_each, together = int(each[1]), float(each[2]), float(each[3])
    line(
        f"{number:,} drains on a real slurmctld of 10,000 nodes",
        f"one update {together:.3f} s; the whole turn {turn[3]}, including journal, checks and 3 s of waiting",
        f"one `scontrol update` for each: {one_each:.1f} s", f"{one_each / together:,.0f} times as fast",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--slurm", action="store_true")
    args = parser.parse_args()
    scratch = tempfile.mkdtemp()
    try:
        rounds(args.program, scratch)
        judging(args.program, args.python, racks(args.program, scratch), args.runs)
        tcp(args.program, min(args.runs, 3))
        if args.slurm:
            drains()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("| what | fabricgate | alternative | ratio |\n|---|---|---|---|")
    print("\n".join(TABLE))
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, fastest of {args.runs}")


main()
