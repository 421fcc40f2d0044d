"""Changes of recorded outputs that do not change the truth: other names, another order, one more node, other pieces, fewer cells."""
import random
import re

ROW = re.compile(r"^( {0,2}\d+)((?: +(?:N/A|\d+\.\d\d))+)$")
RUNNING = re.compile(r"^Running (\S+)\.$", re.M)
RANGES = re.compile(r'"([\w.-]*)\[([\d,-]+)\]"')
PROCESS = re.compile(r"^Process (\d+) \((.*)$")


def rng(files, salt):
    return random.Random("%s/%s" % (salt, ",".join(sorted(files))))


def is_nvbandwidth(text):
    return isinstance(text, str) and text.startswith("nvbandwidth Version") and "Running " in text


def nodes_of(files):
    """Names of nodes, by the folders they have."""
    found = set()
    for path in files:
        parts = path.split("/")
        if parts[0] == "nodes" and len(parts) > 2:
            found.add(parts[1])
        elif parts[0] == "pairs" and len(parts) > 3:
            found |= {parts[1], parts[2]}
    return sorted(found)


def spelt_out(text):
    """Host lists of a claims file without ranges."""
    def names(match):
        out = []
        for piece in match.group(2).split(","):
            first, _, last = piece.partition("-")
            out += ['"%s%0*d"' % (match.group(1), len(first), i) for i in range(int(first), int(last or first) + 1)]
        return "[" + ", ".join(out) + "]"
    return RANGES.sub(names, text)


def rows(text, change):
    """Every cell of every matrix through change(row, column, value); None is N/A."""
    out = []
    for line in text.split("\n"):
        match = ROW.match(line)
        if match:
            cells = []
            for col, word in enumerate(match.group(2).split()):
                value = change(int(match.group(1)), col, None if word == "N/A" else float(word))
                cells.append("       N/A" if value is None else "%10.2f" % value)
            line = match.group(1) + "".join(cells)
        out.append(line)
    return resum("\n".join(out))


def resum(text):
    """Recomputes the SUM lines of changed matrices."""
    total, out = 0.0, []
    for line in text.split("\n"):
        match = ROW.match(line)
        if match:
            total += sum(float(w) for w in match.group(2).split() if w != "N/A")
        elif line.startswith("SUM "):
            line, total = " ".join(line.split()[:2]) + " %.2f" % total, 0.0
        out.append(line)
    return "\n".join(out)


def matrices(files, change):
    return {p: rows(t, change) if is_nvbandwidth(t) else t for p, t in files.items()}


# the changes: each gives (files, {old node: new node}), or None where it does not apply


def rename(files):
    """The same names, permuted."""
    names = nodes_of(files)
    if len(names) < 2:
        return None
    dealt = names[:]
    rng(files, "rename").shuffle(dealt)
    new = dict(zip(names, dealt))
    word = re.compile(r"(?<![\w.-])(%s)(?![\w-])" % "|".join(map(re.escape, sorted(names, key=len, reverse=True))))

    def swap(text):
        return word.sub(lambda m: new[m.group(1)], text)
    out = {}
    for path, text in files.items():
        if path.endswith("claims.toml"):
            text = spelt_out(text)
        out["/".join(new.get(p, p) for p in path.split("/"))] = text if isinstance(text, bytes) else swap(text)
    return out, new


def file_names(files):
    """Other file names, so another order of files."""
    draw, out = rng(files, "names"), {}
    for path, text in files.items():
        folder, _, name = path.rpartition("/")
        if name != "claims.toml":
            name = "%08x%s" % (draw.getrandbits(32), "." + name.rsplit(".", 1)[1] if "." in name else "")
        out[(folder + "/" if folder else "") + name] = text
    return out, {}


def one_more(files):
    """One more healthy node: a passing one, under another name and with different noise."""
    if any(not p.startswith("nodes/") and p != "claims.toml" for p in files):
        return None
    claims = files.get("claims.toml")
    for node in nodes_of(files):
        table = [t for t in (claims or "").split("[[") if '"%s"' % node in t]
        if claims and (len(table) != 1 or 'nodes = ["%s"]' % node not in table[0]):
            continue
        own = {p: t for p, t in files.items() if p.startswith("nodes/%s/" % node)}
        if not all(is_nvbandwidth(t) for t in own.values()):
            continue
        draw, out = rng(files, "more"), dict(files)
        for path, text in own.items():
            moved = rows(text, lambda r, c, v: None if v is None else v * (1 + draw.gauss(0, 0.002)))
            out[path.replace("/%s/" % node, "/onemore/")] = moved.replace(node, "onemore")
        if claims:
            out["claims.toml"] = claims + "\n[[" + table[0].replace(node, "onemore")
        return out, {"+": node}
    return None


def split(files):
    """Every test of an output in a separate file."""
    out, changed = {}, False
    for path, text in files.items():
        starts = [m.start() for m in RUNNING.finditer(text)] if is_nvbandwidth(text) else []
        if len(starts) < 2 or "CUDA_ERROR" in text or "ASSERT" in text or text.count("SUM ") < len(starts) or "Waived" in text:
            out[path] = text
            continue
        changed = True
        note = text.find("NOTE: The reported")
        end = note if note > 0 else len(text)
        tail = text[end:]
        for k, start in enumerate(starts):
            stop = starts[k + 1] if k + 1 < len(starts) else end
            stem, dot, suffix = path.rpartition(".")
            out["%s-part%d%s%s" % (stem, k, dot, suffix)] = text[:starts[0]] + text[start:stop] + tail
    return (out, {}) if changed else None


def copied(files):
    """Every output twice."""
    out = dict(files)
    for path, text in files.items():
        if path.startswith(("nodes/", "domains/")):
            out[path + ".copy"] = text
    return out, {}


def cells(text):
    return [None if w == "N/A" else float(w) for line in text.split("\n") for m in (ROW.match(line),) if m for w in m.group(2).split()]


def fresh(files):
    """A fourth reading where there are three: the median of each cell, with different noise. A dip is not repeated."""
    draw, out, groups = rng(files, "fresh"), dict(files), {}
    for path, text in files.items():
        if is_nvbandwidth(text):
            groups.setdefault((path.rpartition("/")[0], tuple(RUNNING.findall(text))), []).append(path)
    for paths in groups.values():
        read = [cells(files[p]) for p in paths]
        if len(paths) < 3 or len({len(r) for r in read}) > 1 or len({files[p] for p in paths}) < 3:
            continue
        middle = iter([None if None in c else sorted(c)[len(c) // 2] for c in zip(*read)])
        out[paths[0].rpartition(".")[0] + "-fresh.txt"] = rows(
            files[paths[0]], lambda r, c, v: (lambda m: None if m is None else m * (1 + draw.gauss(0, 0.002)))(next(middle)))
    return (out, {}) if len(out) > len(files) else None


def scaled(files):
    """Every number faster by a thousandth."""
    return matrices(files, lambda r, c, v: None if v is None else v * 1.001), {}


def holes(files):
    """A tenth of the cells is missing."""
    draw = rng(files, "holes")
    wide = {p for p, t in files.items() if is_nvbandwidth(t) and " GPU(row)" in t}
    out = {p: rows(t, lambda r, c, v: None if draw.random() < 0.1 else v) if p in wide else t for p, t in files.items()}
    return (out, {}) if wide else None


def ranks(files):
    """Ranks of a run over several nodes in another order."""
    out, changed = dict(files), False
    for path, text in files.items():
        lines = text.split("\n") if is_nvbandwidth(text) else []
        who = [m for m in map(PROCESS.match, lines) if m]
        if len(who) < 2 or "rank =" in text:
            continue
        order = list(range(len(who)))
        rng(files, path).shuffle(order)
        out[path], changed = dealt(lines, who, order), True
    return (out, {}) if changed else None


def dealt(lines, who, order):
    """Rows and columns in a new order; order[new] is the old rank."""
    out, block = [], []
    for line in lines:
        match, process = ROW.match(line), PROCESS.match(line)
        if match:
            block.append(match.group(2).split())
            if len(block) == len(order):
                for new, old in enumerate(order):
                    out.append(str(new).rjust(2) + "".join(block[old][c].rjust(10) for c in order))
                block = []
        elif process:
            out.append("Process %s (%s" % (process.group(1), who[order[int(process.group(1))]].group(2)))
        else:
            out.append(line)
    return "\n".join(out)


EXACT = {"names of nodes": rename, "split into tests": split, "order of ranks": ranks}
LOOSE = {"names of files": file_names, "one node more": one_more, "every file twice": copied, "a fresh reading": fresh, "scaled by 1.001": scaled,
         "a tenth of the cells dropped": holes}
