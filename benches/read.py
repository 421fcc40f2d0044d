"""Reads recorded nvbandwidth outputs into lists of floats, and does no more.

The reference of ci/bench: the first step of a site's own script. Plain loops and
one regular expression; nothing is made slow on purpose.
"""

import os
import re
import sys

ROW = re.compile(r"^\s*\d+((?:\s+(?:N/A|\d+\.\d+))+)\s*$")


def read(path):
    """All matrices of one file, by test: lists of rows of floats or None."""
    matrices = {}
    test = None
    rows = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Running "):
                test = line[len("Running "):].strip().rstrip(".")
                rows = []
                continue
            if line.startswith("SUM "):
                matrices[test] = rows
                continue
            match = ROW.match(line)
            if match:
                rows.append([None if word == "N/A" else float(word) for word in match[1].split()])
    return matrices


def main():
    files = []
    for folder, _, names in os.walk(sys.argv[1]):
        files.extend(os.path.join(folder, name) for name in names if name.endswith(".txt"))
    outputs = [read(path) for path in sorted(files)]
    cells = sum(
        cell is not None
        for matrices in outputs
        for rows in matrices.values()
        for row in rows
        for cell in row
    )
    print(f"{len(files)} files, {cells} cells")


main()
