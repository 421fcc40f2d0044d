"""nvbandwidth's text (0.4 to 0.8, one node or many) and JSON, from tables of numbers."""
import json

DESCRIPTIONS = {
    "device_to_device_memcpy_read_ce": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_write_ce": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_read_sm": "memcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_device_memcpy_write_sm": "memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_to_device_memcpy_ce": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_host_memcpy_ce": "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
    "host_to_device_memcpy_sm": "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)",
    "device_to_host_memcpy_sm": "memcpy SM CPU(row) <- GPU(column) bandwidth (GB/s)",
    "multinode_device_to_device_memcpy_read_ce": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "multinode_device_to_device_memcpy_write_ce": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "multinode_device_to_device_memcpy_read_sm": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "multinode_device_to_device_memcpy_write_sm": "memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)",
}
EARLY_NOTE = ("NOTE: This tool reports current measured bandwidth on your system.\n"
              "Additional system-specific tuning may be required to achieve maximal peak bandwidth.\n\n")
LATE_NOTE = ("NOTE: The reported results may not reflect the full capabilities of the platform.\n"
             "Performance can vary with software drivers, hardware clocks, and system topology.\n")


def bdf(gpu):
    return "%08x:%02x:00" % (gpu // 4 * 8, 0x1b + 0x10 * gpu)


def table(name, cells, version, description=None):
    """One matrix under its description, with its sum."""
    wide = 1 if version < "0.5" else 2
    rows = len(cells)
    cols = len(cells[0])
    out = [description or DESCRIPTIONS[name], " " * wide + "".join("%10d" % c for c in range(cols))]
    total = 0.0
    for r in range(rows):
        line = str(r).rjust(wide)
        for value in cells[r]:
            line += "       N/A" if value is None else "%10.2f" % value
            total += value or 0.0
        out.append(line)
    out += ["", "SUM %s %.2f" % (name, total), ""]
    return "\n".join(out) + "\n"


def both_ways(name, first, second, version):
    """The three matrices of a bidirectional test since 0.6."""
    kind = "read" if "_read_" in name else "write"
    engine = "CE" if name.endswith("ce") else "SM"
    total = [[None if a is None else a + b for a, b in zip(x, y)] for x, y in zip(first, second)]
    out = "Running %s.\n" % name
    for label, cells in (("%s1" % kind, first), ("%s2" % kind, second), ("total", total)):
        title = "memcpy %s GPU(row) <-> GPU(column) %s bandwidth (GB/s)" % (engine, label.capitalize())
        out += table("%s_%s" % (name, label), cells, version, title)
    return out


def head(version, driver, devices, host=None, ranks=None, cuda="12080"):
    """ranks: [(node, device, product)] for a run over several nodes."""
    out = "nvbandwidth Version: v%s\nBuilt from Git version: v%s\n\n" % (version, version)
    if version < "0.6":
        out += EARLY_NOTE
    if ranks:
        out += "MPI version: Open MPI v4.1.6, package: Debian OpenMPI, ident: 4.1.6, repo rev: v4.1.6, Sep 30, 2023\n"
    out += "CUDA Runtime Version: %s\nCUDA Driver Version: %s\nDriver Version: %s\n\n" % (cuda, cuda, driver)
    if ranks:
        for rank, (node, gpu, product) in enumerate(ranks):
            out += "Process %d (%s): device %d: %s (%s)\n" % (rank, node, gpu, product, bdf(gpu))
    else:
        if version >= "0.8" and host:
            out += host + "\n"
        for i, product in enumerate(devices):
            out += "Device %d: %s%s\n" % (i, product, " (%s)" % bdf(i) if version >= "0.6" else "")
    return out + "\n"


def text(tests, version="0.8", driver="570.124.06", devices=(), host=None, ranks=None, waived=0, tail=""):
    """tests: [(name, cells)], or (name, first, second) for a bidirectional one."""
    out = head(version, driver, devices, host, ranks)
    for test in tests:
        if len(test) == 3:
            out += both_ways(test[0], test[1], test[2], version)
        else:
            out += "Running %s.\n" % test[0] + table(test[0], test[1], version)
    out += "Waived: \n" * waived
    out += tail
    return out + (LATE_NOTE if version >= "0.6" else "")


def as_json(tests, version="0.8", driver="570.124.06", devices=(), host="host", waived=()):
    """The object of -j: cells are strings, the diagonal "N/A"."""
    cases = []
    for name, cells in tests:
        values = [v for row in cells for v in row if v is not None]
        cases.append({"bandwidth_description": DESCRIPTIONS[name],
                      "bandwidth_matrix": [["N/A" if v is None else "%g" % v for v in row] for row in cells],
                      "name": name, "status": "Passed", "sum": sum(values)})
    cases += [{"name": name, "status": "Waived"} for name in waived]
    body = {"CUDA Runtime Version": 12080, "Driver Version": driver, "git_version": "v" + version,
            "testcases": cases, "version": "v" + version}
    if version >= "0.8":
        body["GPU Device list"] = ["%d: %s (%s): (%s)" % (i, d, bdf(i), host) for i, d in enumerate(devices)]
    return json.dumps({"nvbandwidth": body}, indent="\t", separators=(",", " : "), sort_keys=True) + "\n"
