"""Makes a failing case smaller: fewer nodes, fewer readings, then fewer files, while it still fails for the same cause."""
import json
import os
import re
import tempfile

import fleet
import kinds
import score


def cause(result):
    """The first error, without names and numbers."""
    return re.sub(r"[\w.:-]*\d[\w.:-]*", "#", result.wrong[0])[:60] if result.wrong else ""


def tried(binary, name, seed):
    """The case under the current limits, and its score; (None, None) where it cannot be built that small."""
    try:
        case = kinds.make(name, seed)
    except Exception:  # too small for its kind
        return None, None
    return case, score.score(case, score.judge(binary, case.files))


def smaller_fleet(binary, name, seed, want, bad):
    """The fewest nodes and readings with which the kind fails in the same way. Healthy nodes stay the majority."""
    best = None
    for nodes in [n for n in (2, 3, 4, 5, 6, 8, 10) if n > 2 * bad] + [None]:
        for readings in (1, 2, 3, None):
            fleet.LIMIT.update(nodes=nodes, readings=readings)
            case, result = tried(binary, name, seed)
            if result is not None and cause(result) == want:
                return case, nodes, readings
            best = case or best
    return best, None, None


def fewer_files(binary, case, want):
    """Leaves out one folder or file after another; files of faulty nodes stay, since without them no fault can be found."""
    faulty = case.truth.bad_nodes()
    for path in sorted(case.files, reverse=True):
        if path == "claims.toml" or any("/%s/" % node in path for node in faulty):
            continue
        rest = {p: t for p, t in case.files.items() if p != path}
        result = score.score(score_case(case, rest), score.judge(binary, rest))
        if cause(result) == want:
            case = score_case(case, rest)
    return case


def score_case(case, files):
    """The case with other files; a node without files need not pass."""
    left = {p.split("/")[1] for p in files if p.startswith("nodes/")} | {n for n in case.nodes for p in files if "/%s/" % n in p}
    nodes = [n for n in case.nodes if n in left or any(p.startswith("domains/") for p in files)]
    return type(case)(files, nodes, case.truth)


def main(binary, name, seed, keep=None):
    kinds.load()
    case, result = tried(binary, name, seed)
    if result is None:
        print("%s cannot be built" % name)
        return 1
    if result.right:
        print("%s %d does not fail" % (name, seed))
        return 0
    want = cause(result)
    print("%s %d: %d files, %d nodes\n    %s" % (name, seed, len(case.files), len(case.nodes), "\n    ".join(result.wrong[:4])))
    small, nodes, readings = smaller_fleet(binary, name, seed, want, len(case.truth.bad_nodes()))
    if small is not None:
        case = small
    case = fewer_files(binary, case, want)
    folder = os.path.abspath(keep) if keep else tempfile.mkdtemp(prefix="shrunk-")
    verdicts = score.judge(binary, case.files, folder)
    result = score.score(case, verdicts)
    print("smaller: %d files, %d nodes (at most %s nodes, %s readings), in %s\n    %s" % (
        len(case.files), len(case.nodes), nodes, readings, folder, "\n    ".join(result.wrong[:4])))
    with open(folder.rstrip("/") + ".verdicts.json", "w") as out:
        json.dump(verdicts, out, indent=1)
    return 1
