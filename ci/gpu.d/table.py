#!/usr/bin/env python3
"""The tables of ci/gpu: reads the stored outputs, compares the native probes with the tools.

    table.py gpus FACTS.json       number of GPUs of a machine
    table.py report DIR --limit P  the table; ends with 1 where something is wrong

Needs only Python's own library. A missing value is a dash, and never a pass.
"""

import argparse
import csv
import json
import pathlib
import statistics
import sys

# Tests in which the native probe must agree with nvbandwidth within the limit: only one GPU's own
# path affects these numbers.
JUDGED = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_local_copy")

# Printed rows of one test; the table as a file has all.
SHOWN = 16

# A capability that a GPU lacks is not a gap in its facts.
NO_GAP = ("not supported by this GPU",)

# Facts that no GPU reports, and that need a separate tool or right.
BESIDE = ("Xid errors", "LLDP neighbours", "InfiniBand neighbours", "IMEX domain")

# Expected reports of injected faults: a class of problem, and the exit codes that go with it
# (DESIGN.md, section 9).
FAULTS = {
    "wrong-data": (("wrong-data",), (3,)),
    "killed-child": (("child-died",), (4, 5)),
    "time-out": (("hung",), (4, 5)),
    "lost-gpu": (None, (4, 5)),
    # The measurement is valid; a value that NVML did not report is missing.
    "hanging-nvml": ("around", (0, 4)),
}


def documents(path):
    """The JSON documents of a file: one, or one a line."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return []
    for whole in (text, None):
        found = []
        for part in [whole] if whole is not None else text.splitlines():
            try:
                found.append(json.loads(part))
            except ValueError:
                continue
        if found:
            return found
    return []


def is_row_label(label):
    return label in ("", "0", "-")


def ours(path, test):
    """(row, column) to the median of the readings, and the unit."""
    cells, unit = {}, None
    for document in documents(path):
        for found in document.get("tests") or []:
            if found.get("testcase") != test or "readings" not in found:
                continue
            unit = found["unit"]
            for r, row in enumerate(found["rows"]):
                for c, col in enumerate(found["cols"]):
                    values = [reading[r][c] for reading in found["readings"]]
                    values = [value for value in values if value is not None]
                    if values:
                        cells[(row, col)] = statistics.median(values)
    return cells, unit


def theirs(path, test):
    """The same for nvbandwidth's output, as fabricgate reads it."""
    runs, unit = {}, None
    for document in documents(path):
        for found in document.get("measurements") or []:
            if found.get("kind") != "matrix" or found.get("testcase") != test:
                continue
            unit = found["unit"]
            for r, row in enumerate(found["rows"]):
                for c, col in enumerate(found["cols"]):
                    value = found["cells"][r][c]
                    if value is not None:
                        runs.setdefault((row, col), []).append(value)
    return {at: statistics.median(values) for at, values in runs.items()}, unit


def points(path, test, is_ours):
    """Bytes to (time in us, algbw in GB/s)."""
    found = {}
    for document in documents(path):
        for series in document.get("tests" if is_ours else "measurements") or []:
            # Old nccl-tests do not print their name.
            if series.get("testcase") not in (test, None):
                continue
            for point in series.get("points") or []:
                if point.get("placement", "out_of_place") == "out_of_place":
                    found[point["bytes"]] = (point["time_us"], point["algbw"])
    return found


def shown(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def pair_name(row, col, is_matrix):
    return f"{row} -> {col}" if is_matrix else f"GPU {col}"


class Report:
    """Results: rows of the table, and errors."""

    def __init__(self, folder, limit):
        self.folder = folder
        self.limit = limit
        self.rows = []
        self.wrong = []
        self.runs = []
        runs = folder / "runs.tsv"
        for line in runs.read_text().splitlines() if runs.exists() else []:
            kind, test, side, file, code, seconds = line.split("\t")
            self.runs.append(
                {
                    "kind": kind,
                    "test": test,
                    "side": side,
                    "file": file,
                    "code": int(code),
                    "seconds": float(seconds),
                }
            )

    def of(self, kind):
        """The runs of a kind, by test and side."""
        found = {}
        for run in self.runs:
            if run["kind"] == kind:
                found.setdefault(run["test"], {})[run["side"]] = run
        return found

    def add(self, test, what, unit, mine, yours, seconds, judged):
        ratio = mine / yours if mine is not None and yours else None
        verdict = ""
        if judged and mine is None:
            verdict = "NOT MEASURED"
        elif judged and ratio is not None:
            verdict = "ok" if abs(ratio - 1) <= self.limit / 100 else "OUTSIDE"
        if verdict in ("OUTSIDE", "NOT MEASURED"):
            self.wrong.append(f"{test}, {what}: {verdict.lower()} ({shown(mine)} and {shown(yours)} {unit})")
        self.rows.append((test, what, unit, mine, yours, ratio, seconds, verdict))

    def copies(self):
        for test, sides in self.of("copy").items():
            mine, yours = sides.get("ours"), sides.get("theirs")
            seconds = tuple(run["seconds"] if run else None for run in (mine, yours))
            cells, unit = ours(self.folder / mine["file"], test) if mine else ({}, None)
            others, other_unit = {}, None
            if yours:
                parsed = pathlib.Path(yours["file"]).with_suffix(".parsed.json")
                others, other_unit = theirs(self.folder / parsed, test)
                if not others:
                    self.note(f"nvbandwidth reported nothing for {test} (exit code {yours['code']})")
            if unit and other_unit and unit != other_unit:
                self.wrong.append(f"{test}: ours is in {unit}, theirs in {other_unit}")
                continue
            if mine and mine["code"] != 0:
                self.wrong.append(f"{test}: the native probe ended with {mine['code']}: {problems(self.folder / mine['file'])}")
            is_matrix = len({row for row, _ in cells | others}) > 1
            for at in sorted(cells | others, key=lambda at: [(len(part), part) for part in at]):
                self.add(
                    test,
                    pair_name(*at, is_matrix),
                    unit or other_unit or "?",
                    cells.get(at),
                    others.get(at),
                    seconds,
                    test in JUDGED,
                )
            if not cells and not others:
                self.rows.append((test, "nothing measured", "", None, None, None, seconds, ""))

    def collectives(self):
        for test, sides in self.of("collective").items():
            mine, yours = sides.get("ours"), sides.get("theirs")
            seconds = tuple(run["seconds"] if run else None for run in (mine, yours))
            own = points(self.folder / mine["file"], test, True) if mine else {}
            others = {}
            if yours:
                parsed = pathlib.Path(yours["file"]).with_suffix(".parsed.json")
                others = points(self.folder / parsed, test, False)
            if mine and mine["code"] != 0:
                self.unmet(mine, test)
            largest = max(own.keys() & others.keys(), default=max(own.keys() | others.keys(), default=None))
            if largest is None:
                self.rows.append((test, "nothing measured", "", None, None, None, seconds, ""))
                continue
            what = f"{largest >> 20} MiB, time" if largest >= 1 << 20 else f"{largest} B, time"
            self.add(
                test,
                what,
                "us",
                own.get(largest, (None, None))[0],
                others.get(largest, (None, None))[0],
                seconds,
                False,
            )

    def unmet(self, run, test):
        """A collective that did not work: NCCL may be missing, which is reported."""
        found_problems = problems(self.folder / run["file"])
        if "no-nccl" in found_problems or "nccl-missing" in found_problems or "libnccl" in found_problems:
            self.note(f"{test}: {found_problems}")
        else:
            self.wrong.append(f"{test}: the native probe ended with {run['code']}: {found_problems}")

    def facts(self):
        run = self.of("facts").get("facts", {}).get("ours")
        if not run:
            return
        found = documents(self.folder / run["file"])
        facts = found[0] if found else {}
        gaps = []
        if run["code"] != 0:
            gaps.append(f"ended with {run['code']}")
        for gpu in facts.get("gpus") or []:
            for name in ("uuid", "product", "architecture", "pci_address", "memory_bytes"):
                if gpu.get(name) is None:
                    gaps.append(f"GPU {gpu['index']} has no {name}")
        for missing in facts.get("missing") or []:
            if missing["why"] not in NO_GAP and missing["what"] not in BESIDE:
                where = f" of GPUs {missing['gpus']}" if missing.get("gpus") else ""
                gaps.append(f"{missing['what']}{where}: {missing['why']}")
        print(f"facts: {len(facts.get('gpus') or [])} GPUs, " + ("complete" if not gaps else "INCOMPLETE"))
        self.wrong.extend(f"facts: {gap}" for gap in gaps)

    def around(self):
        """NVML's report around the copies, and the PCIe link under load."""
        maxima = {}
        for facts in documents(self.folder / "facts.json")[:1]:
            for gpu in facts.get("gpus") or []:
                maxima[gpu["index"]] = (gpu.get("pcie") or {}).get("generation_max")
        for test, sides in self.of("copy").items():
            for document in documents(self.folder / sides["ours"]["file"]) if "ours" in sides else []:
                around = document.get("around") or {}
                for gpu in around.get("gpus") or []:
                    load = gpu.get("under_load") or {}
                    remarks = []
                    most = maxima.get(gpu["index"])
                    if most and load.get("pcie_generation") and load["pcie_generation"] < most:
                        remarks.append(f"PCIe generation {load['pcie_generation']} of {most} under load")
                    remarks += [f"clocks limited by: {why}" for why in load.get("throttled") or []]
                    if gpu.get("link_errors"):
                        remarks.append(f"link errors grew: {gpu['link_errors']}")
                    if gpu.get("pcie_replays"):
                        remarks.append(f"{gpu['pcie_replays']} PCIe replays")
                    if gpu.get("others"):
                        remarks.append(f"others compute on it: {gpu['others']}")
                    if remarks:
                        self.note(f"{test}: GPU {gpu['index']}: " + ", ".join(remarks))

    def faults(self):
        for name, sides in self.of("fault").items():
            run = sides["ours"]
            path = self.folder / run["file"]
            classes, codes = FAULTS[name]
            found = documents(path)
            reported = {problem.get("class") for document in found for problem in document.get("problems") or []}
            if classes == "around":
                is_reported = any((document.get("around") or {}).get("missing") for document in found)
            else:
                is_reported = bool(reported) if classes is None else bool(reported & set(classes))
            is_well = is_reported and run["code"] in codes
            print(
                f"fault {name}: exit code {run['code']}, "
                + (", ".join(sorted(filter(None, reported))) or "no problem")
                + f", {run['seconds']:.1f} s: "
                + ("reported" if is_well else "NOT REPORTED")
            )
            if not is_well:
                self.wrong.append(f"fault {name} was not reported as it must be: {problems(path)}")

    def others(self):
        for kind in ("all", "fabric", "doctor"):
            for name, sides in self.of(kind).items():
                run = sides["ours"]
                print(f"{'node probe ' if kind != 'doctor' else ''}{name}: exit code {run['code']}, {run['seconds']:.1f} s")
                # 4 is a part that could not be measured here, reported with its reason; a missing
                # part of the machine is not a fault of the probes.
                if kind != "doctor" and run["code"] not in (0, 4):
                    self.wrong.append(f"{name} ended with {run['code']}")

    def note(self, text):
        with (self.folder / "notes.tsv").open("a") as notes:
            notes.write(f"note\t{text}\t\n")

    def print_notes(self):
        path = self.folder / "notes.tsv"
        notes = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
        for kind, what, why in notes:
            if kind == "note":
                print(f"note: {what}")
        for kind, what, why in notes:
            if kind == "not-run":
                print(f"not run: {what}: {why}")

    def table(self):
        head = ("test", "GPU or pair", "ours", "theirs", "unit", "ratio", "s ours", "s theirs", "")
        with (self.folder / "table.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["test", "where", "unit", "ours", "theirs", "ratio", "seconds_ours", "seconds_theirs", "verdict"])
            for test, what, unit, mine, yours, ratio, seconds, verdict in self.rows:
                writer.writerow([test, what, unit, mine, yours, ratio, *seconds, verdict])
        lines, last = [], None
        by_test = {}
        for row in self.rows:
            by_test.setdefault(row[0], []).append(row)
        for test, rows in by_test.items():
            left_out = 0
            if len(rows) > SHOWN:
                # The largest differences are the most informative.
                rows = sorted(rows, key=lambda row: -abs((row[5] or 1) - 1))
                left_out = len(rows) - SHOWN
                rows = rows[:SHOWN]
            for _, what, unit, mine, yours, ratio, seconds, verdict in rows:
                is_first = test != last
                lines.append(
                    (
                        test if is_first else "",
                        what,
                        shown(mine),
                        shown(yours),
                        unit,
                        f"{ratio:.4f}" if ratio is not None else "-",
                        shown(seconds[0]) if is_first else "",
                        shown(seconds[1]) if is_first else "",
                        verdict,
                    )
                )
                last = test
            if left_out:
                lines.append(("", f"and {left_out} that differ less", "", "", "", "", "", "", ""))
        widths = [max(len(line[at]) for line in [head, *lines]) for at in range(len(head))]
        right = (2, 3, 5, 6, 7)
        for line in [head, *lines]:
            cells = [text.rjust(width) if at in right else text.ljust(width) for at, (text, width) in enumerate(zip(line, widths))]
            print("  ".join(cells).rstrip())


def problems(path):
    """A short form of the problems in a document of the native probes."""
    found = [
        f"{problem.get('class')}: {problem.get('detail')}"
        for document in documents(path)
        for problem in document.get("problems") or []
    ]
    if found:
        return "; ".join(found[:3])
    stderr = path.with_name(path.name + ".stderr")
    lines = stderr.read_text(errors="replace").strip().splitlines() if stderr.exists() else []
    return lines[-1] if lines else "no problem is reported"


def report(folder, limit):
    """Prints everything; true if there is no error."""
    found = Report(folder, limit)
    found.copies()
    found.collectives()
    found.around()
    found.table()
    print()
    found.facts()
    found.others()
    found.faults()
    found.print_notes()
    print()
    for wrong in found.wrong:
        print(f"WRONG: {wrong}")
    compared = sum(row[7] == "ok" for row in found.rows)
    if not found.wrong and compared:
        print(f"all well: {compared} host and local copies within {limit:g} % of nvbandwidth's")
    elif not found.wrong:
        print("nothing is wrong, and no host or local copy was compared with nvbandwidth's")
    return not found.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    counting = commands.add_parser("gpus")
    counting.add_argument("facts", type=pathlib.Path)
    reporting = commands.add_parser("report")
    reporting.add_argument("folder", type=pathlib.Path)
    reporting.add_argument("--limit", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.command == "gpus":
        print(sum(len(document.get("gpus") or []) for document in documents(arguments.facts)))
        return 0
    return 0 if report(arguments.folder, arguments.limit) else 1


if __name__ == "__main__":
    sys.exit(main())
