"""Reads recorded nvbandwidth outputs and judges them by rules in pandas.

The reference of ci/bench-compare: a site's own notebook. The rules are the plain
ones of such scripts: a GPU is low where the median of its row
or of its column, over all partners, is more than 2.8 % below the median of its
domain; a host copy where it is 12 % below that of the fleet. No second
measurement, no correction for partners, no noise, no coverage, no evidence.
"""

import os
import re
import sys
import time

import pandas

ROW = re.compile(r"^\s*\d+((?:\s+(?:N/A|\d+\.\d+))+)\s*$")


def read(path, domain, rows):
    """Appends (domain, test, row, column, rate) of every number of a file."""
    test, at = None, 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Running "):
                test, at = line[len("Running "):].strip().rstrip("."), 0
                continue
            match = ROW.match(line)
            if match:
                for column, word in enumerate(match[1].split()):
                    if word != "N/A":
                        rows.append((domain, test, at, column, float(word)))
                at += 1


def main():
    began = time.perf_counter()
    rows = []
    for folder, _, names in sorted(os.walk(sys.argv[1])):
        for name in sorted(names):
            if name.endswith(".txt"):
                read(os.path.join(folder, name), os.path.relpath(folder, sys.argv[1]), rows)
    frame = pandas.DataFrame(rows, columns=["domain", "test", "row", "column", "rate"])
    been_read = time.perf_counter()
    pairs = frame[frame.test.str.contains("device_to_device")]
    level = pairs.groupby(["domain", "test"]).rate.transform("median")
    shares = pairs.assign(share=pairs.rate / level)
    found = set()
    for end in ("row", "column"):
        ends = shares.groupby(["domain", "test", end]).share.median()
        found |= {(domain, gpu) for domain, _, gpu in ends[ends < 1 - 0.028].index}
    hosts = frame[frame.test.str.contains("host")]
    share = hosts.rate / hosts.groupby("test").rate.transform("median")
    found |= set(zip(hosts[share < 0.88].domain, hosts[share < 0.88].column))
    ended = time.perf_counter()
    print(f"{been_read - began:.3f} s read, {ended - been_read:.3f} s judged")
    for domain, gpu in sorted(found):
        print(domain, gpu)


main()
