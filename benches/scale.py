"""Fleets of 18 to 10,000 simulated nodes through every stage, timed.

For ci/bench-scale. Every stage is a command of the program itself, so that its
time and memory are those that an operator sees. Nodes answer inside the process
(`workers = false`); real worker processes are measured separately. Prints
tables in Markdown; compares nothing and fails only where a stage does.
"""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time

# A fault each, so that there are findings to judge, propose and report.
HEAD = """title = "{title}"
seed = 17
[noise]
sigma = 0.002
[network]
rails = {rails}
leaf_nodes = {leaf}
uplinks = {uplinks}
"""
FAULTS = """[[fault]]
kind = "lost-links"
gpu = "{gpu}"
[[fault]]
kind = "rail-rate"
node = "{node}"
rail = 1
share = 0.5
"""


def racks(number, faults=None):
    """GB200 NVL72 racks: 18 nodes, one NVLink domain and one leaf each."""
    text = HEAD.format(title=f"{number} racks", rails=4, leaf=18, uplinks=18)
    for rack in range(1, number + 1):
        text += f'[[domain]]\nname = "rack{rack:04}"\nnodes = "r{rack:04}n[01-18]"\nplatform = "gb200-nvl72"\n'
    return text + (FAULTS.format(gpu="r0001n07:2", node="r0001n11") if faults is None else faults)


def boxes(number, leaf, faults=None):
    """HGX H100 nodes, each a separate domain, on eight rails behind leaves."""
    text = HEAD.format(title=f"{number} HGX nodes", rails=8, leaf=leaf, uplinks=leaf)
    text += f'[[domain]]\nnodes = "hgx[00001-{number:05}]"\nplatform = "hgx-h100"\nper_node = true\n'
    return text + (FAULTS.format(gpu="hgx00007:2", node="hgx00011") if faults is None else faults)


FLEETS = {
    18: ("one NVL72 rack", lambda: racks(1)),
    1152: ("64 HGX pods of 18", lambda: boxes(1152, 18)),
    1800: ("100 NVL72 racks", lambda: racks(100)),
    10000: ("10,000 HGX nodes, 313 leaves", lambda: boxes(10000, 32)),
}
# Stages whose growth is measured.
NODES, STEPS, READINGS, CELLS = "node", "step", "reading", "cell"


# A node as `scontrol show node --json` reports it.
SLURM = {
    "state": ["IDLE"], "partitions": ["main"], "features": [], "active_features": [], "extra": "", "comment": "",
    "reason": "", "boot_time": {"set": True, "infinite": False, "number": 1700000000},
}


class Failed(Exception):
    pass


def expanded(claims):
    """The nodes of a claims file as `sim claims` writes it."""
    names = []
    for line in re.findall(r'^nodes = "([^"]+)"', claims.split("[[leaf]]")[0], re.MULTILINE):
        for name, ranges, rest in re.findall(r"([^\[,]+)(?:\[([^\]]+)\])?([^,\[]*)", line):
            for part in ranges.split(",") if ranges else [""]:
                first, _, last = part.partition("-")
                for at in range(int(first or 0), int(last or first or 0) + 1):
                    names.append(f"{name}{str(at).zfill(len(first)) if part else ''}{rest}")
    return names


def timed(command, codes, out=os.devnull, started=None):
    """Wall and processor seconds, and the most memory in MiB, of a command."""
    with tempfile.NamedTemporaryFile("w+") as messages:
        start = time.perf_counter()
        child = os.posix_spawn(
            command[0], command, os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
                (os.POSIX_SPAWN_DUP2, messages.fileno(), 2),
            ],
        )
        if started:
            started(child)
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - start
        code = os.waitstatus_to_exitcode(status)
        if code not in codes:
            messages.seek(0)
            raise Failed(f"{' '.join(command)}: exit code {code}, expected {codes}\n{messages.read()[-2000:]}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def lines(path):
    count = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
    return count


class Fleet:
    """One fleet, its folder, and the cost of its stages."""

    def __init__(self, program, nodes, place, runs, text=None, sources=None):
        self.program, self.nodes, self.place, self.runs = program, nodes, place, runs
        self.took, self.units, self.sizes = {}, {NODES: nodes}, {}
        os.makedirs(place)
        with open(f"{place}/fleet.toml", "w") as file:
            file.write(text or FLEETS[nodes][1]())
        with open(f"{place}/claims.toml", "w") as file:
            subprocess.run([program, "sim", "claims", f"{place}/fleet.toml"], check=True, stdout=file)
        claims = sources(place) if sources else ["claims.toml"]
        config = (
            f'claims = {json.dumps(claims)}\nrun_dir = "runs"\n[launcher]\nkind = "sim"\nscenario = "fleet.toml"\n'
            "workers = false\nparallel = 1024\n[confirm]\nwait_s = 0\n"
        )
        with open(f"{place}/fabricgate.toml", "w") as file:
            file.write(config)
        # A scheduler that knows all nodes, and finds them idle.
        slurm = f"{place}/slurm.json"
        with open(f"{place}/gate.toml", "w") as file:
            file.write(
                f"{config}[policy]\nsimulated = true\n[gate]\nstate = \"gate\"\n"
                f'scontrol = ["sh", "-c", "cat {slurm}"]\n'
            )
        with open(f"{place}/claims.toml") as file:
            names = expanded(file.read())
        with open(slurm, "w") as file:
            json.dump({"nodes": [{**SLURM, "name": name} for name in names]}, file)

    def stage(self, name, unit, words, codes=(0,), out=None, once=False):
        """Times a command several times; the fastest counts."""
        command = [self.program, *words]
        best = None
        for _ in range(1 if once else self.runs):
            line = timed(command, codes, out or os.devnull)
            best = line if best is None else tuple(map(min, best, line))
            if 10 < line[0]:
                break
        self.took[name] = (unit, *best)
        print(f"  {self.nodes:6} {name:24}{best[0]:9.2f} s {best[1]:9.2f} s cpu {best[2]:7.0f} MiB", flush=True)

    def size(self, name, path):
        if os.path.isdir(path):
            every = (os.path.join(root, f) for root, _, files in os.walk(path) for f in files)
            self.sizes[name] = sum(os.path.getsize(f) for f in every)
        else:
            self.sizes[name] = os.path.getsize(path)

    def folder(self):
        """The only run."""
        run, = (os.path.dirname(path) for path in glob.glob(f"{self.place}/runs/*/run.json"))
        return run

    def run(self):
        place, config = self.place, ["--config", f"{self.place}/fabricgate.toml"]
        self.stage("claims", NODES, ["claims", *config, "--json"], (0, 4))
        for profile in ("audit", "burn-in"):
            out = f"{place}/plan.json"
            self.stage(f"plan {profile}", STEPS, ["plan", profile, *config, "--json"], (0,), out)
            # Counted as text: the document of 10,000 nodes has 100 MB.
            steps = int(subprocess.run(
                ["grep", "-c", '"step": ', out], stdout=subprocess.PIPE, text=True, check=True
            ).stdout)
            self.units[f"plan {profile}"] = steps
            self.size(f"plan {profile}", out)
            os.remove(out)
        self.stage("audit, all stages", READINGS, ["audit", *config, "--json", "--no-progress"], (3,), once=True)
        run = self.folder()
        self.units[READINGS] = lines(f"{run}/results.jsonl")
        self.units[CELLS] = lines(f"{run}/cells.jsonl")
        self.size("run folder", run)
        node = "hgx00011" if self.nodes in (1152, 10000) else "r0001n11"
        self.after(run, config, (0, 2, 3, 4, 5), node)
        self.stage("metrics", NODES, ["metrics", *config, "--run-dir", f"{place}/runs"], (0,))

    def after(self, run, config, codes, node):
        """Commands on an existing run."""
        place = self.place
        self.stage("parse and judge (replay)", CELLS, ["replay", run, *config, "--json"], codes)
        self.stage("apply, dry run", CELLS, ["apply", run, *config, "--json"], codes)
        words = ["apply", run, "--config", f"{place}/gate.toml", "--json"]
        self.stage("gate turn, dry run", CELLS, words, codes)
        for form in ("json", "csv", "html", "junit", "terminal"):
            out = f"{place}/report.{form}"
            words = ["report", run, "--format", form, "--output", out]
            self.stage(f"report {form}", CELLS, words, codes)
            self.size(f"report {form}", out)
        index = f"{place}/history.sqlite"
        words = ["history", "--run-dir", f"{place}/runs", "--file", index, "--json"]
        self.stage("history, build", CELLS, words, (0,), once=True)
        self.stage("history, show", NODES, words)
        self.size("history", index)
        self.stage("explain a node", CELLS, ["explain", run, node], codes)
        for target in ("map", "kubernetes-labels", "topograph", "slurm-topology"):
            out = f"{place}/export"
            self.stage(f"export {target}", CELLS, ["export", "--to", target, "--even-if-simulated", run, "--output", out], codes)
            shutil.rmtree(out) if os.path.isdir(out) else os.path.exists(out) and os.remove(out)
        domain = ["--domain", "rack0001"] if node.startswith("r") else []
        words = ["place", "--even-if-simulated", run, "-k", "8", *domain, "--json"]
        self.stage("place 8 nodes", CELLS, words, codes)


def browser(page):
    """Seconds in which a browser shows a page, without the browser's own start."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        return None

    def opened(address):
        with tempfile.TemporaryDirectory() as profile:
            command = [
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", f"--user-data-dir={profile}", "--window-size=1400,1000",
                f"--screenshot={profile}/page.png", address,
            ]
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return time.perf_counter() - start

    blank = min(opened("about:blank") for _ in range(2))
    return min(opened(f"file://{os.path.realpath(page)}") for _ in range(2)) - blank


def workers(program, nodes, scratch):
    """A round of a probe that takes no time on this many real worker processes."""
    place = tempfile.mkdtemp(dir=scratch)
    os.mkdir(f"{place}/probes")
    with open(f"{place}/probes/noop.toml", "w") as file:
        file.write(
            'name = "noop"\ntitle = "takes no time"\nparser = "nvbandwidth"\nargv = ["true"]\nscope = "node"\n'
            'stage = 1\ncost_s = 0.001\ntimeout_s = 60\ndisturbs = "nothing"\n'
        )
    with open(f"{place}/claims.toml", "w") as file:
        file.write(f'[[domain]]\nname = "d"\nnodes = "n[00001-{nodes:05}]"\n')
    with open(f"{place}/f.toml", "w") as file:
        file.write(
            'claims = "claims.toml"\n[launcher]\nkind = "command"\ntemplate = ["env", "NODE={node}"]\n'
            f'worker = "{program}"\nconnect_s = 300\n[probes]\ndir = "probes"\nrun = ["noop"]\n'
            "readings = 3\nmost_readings = 3\n[confirm]\nenabled = false\n"
        )
    most = [0, 0]
    ended = threading.Event()

    def watch(pid):
        while not ended.wait(0.2):
            count, each = processes(pid)
            most[:] = max(most, [count, each])

    watcher = []

    def started(pid):
        watcher.append(threading.Thread(target=watch, args=(pid,)))
        watcher[0].start()

    command = [program, "audit", "--config", f"{place}/f.toml", "--json", "--no-progress"]
    try:
        wall, _, memory = timed(command, (0, 3, 4, 5), started=started)
    finally:
        ended.set()
        for one in watcher:
            one.join()
    (results,) = glob.glob(f"{place}/*runs/*/results.jsonl") or glob.glob(f"{place}/**/results.jsonl", recursive=True)
    well = 0
    with open(results) as file:
        for line in file:
            well += json.loads(line)["ending"].get("how") == "exited"
    return wall, memory, most, well


def processes(pid):
    """How many children a process has, and the memory of some in KiB, on average."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
    except OSError:
        return 0, 0
    sizes = []
    for child in children[:: max(1, len(children) // 20)]:
        try:
            with open(f"/proc/{child}/smaps_rollup") as file:
                sizes += [int(line.split()[1]) for line in file if line.startswith("Pss:")]
        except OSError:
            continue
    return len(children), sum(sizes) // max(1, len(sizes))


def table(fleets):
    titles = [f"{fleet.nodes:,} nodes" for fleet in fleets]
    grows = {fleet.nodes: fleet for fleet in fleets}
    small, large = grows.get(1152), grows.get(10000)
    print("\n| stage | " + " | ".join(titles) + " | one unit, 10,000 : 1,152 |\n|---" + "|---" * (len(fleets) + 1) + "|")
    for name in fleets[-1].took:
        row = []
        for fleet in fleets:
            _, _, busy, memory = fleet.took[name]
            row.append(f"{busy:.2f} s, {memory:.0f} MiB")
        growth = ""
        if small and large:
            unit = small.took[name][0]
            key = name if unit == STEPS else unit
            each = [fleet.took[name][2] / fleet.units[key] for fleet in (small, large)]
            growth = f"{each[1] / each[0]:.1f} (a {unit})"
        print(f"| {name} | " + " | ".join(row) + f" | {growth} |")
    for unit in (READINGS, CELLS, "plan audit", "plan burn-in"):
        name = f"steps of {unit}" if unit.startswith("plan") else f"{unit}s"
        print(f"| {name} | " + " | ".join(f"{fleet.units[unit]:,}" for fleet in fleets) + " | |")
    for name in fleets[-1].sizes:
        print(f"| size: {name} | " + " | ".join(f"{fleet.sizes[name] / 1e6:.1f} MB" for fleet in fleets) + " | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--nodes", default=",".join(map(str, FLEETS)), help="fleets by their nodes; none where empty")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", default="18,1152,1800,4500", help="real workers; none where empty")
    parser.add_argument("--page", help="a page to open, instead of that of the largest fleet")
    parser.add_argument("--keep", help="keeps the run folders in this folder")
    args = parser.parse_args()
    scratch = args.keep or tempfile.mkdtemp()
    try:
        fleets = []
        for nodes in map(int, filter(None, args.nodes.split(","))):
            fleet = Fleet(args.program, nodes, f"{scratch}/{nodes}", args.runs)
            fleet.run()
            fleets.append(fleet)
        if fleets:
            table(fleets)
        page = args.page or (f"{fleets[-1].place}/report.html" if fleets else None)
        shown = browser(page) if page else None
        if shown:
            print(f"\n{page} ({os.path.getsize(page) / 1e6:.1f} MB) opens in a browser in {shown:.1f} s.")
        elif page:
            print("\nno browser here: how long the page takes to open was not measured")
        counts = [int(count) for count in args.workers.split(",") if count]
        if counts:
            print("\n| real workers | start, 3 readings each, end | coordinator | workers at once, memory of each |\n|---|---|---|---|")
        for count in counts:
            try:
                wall, memory, (most, each), well = workers(args.program, count, scratch)
                read = f"{wall:.1f} s, {well:,} of {3 * count:,} readings"
                print(f"| {count:,} | {read} | {memory:.0f} MiB | {most:,}, {each / 1024:.1f} MiB |", flush=True)
            except Failed as why:
                print(f"| {count:,} | failed: {str(why).splitlines()[-1]} | | |", flush=True)
        load = os.getloadavg()[0]
        print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, load {load:.1f}, fastest of up to {args.runs} runs, {args.program}")
    finally:
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
