"""Changes that must not turn a good verdict into a bad one, or the reverse: over the kinds, or over recorded folders."""
import os
import time
from concurrent.futures import ProcessPoolExecutor

import changes
import kinds
import score
from truth import BAD


def outcomes(verdicts):
    if "error" in verdicts:
        return None
    return {n.get("node"): n.get("outcome") for n in verdicts.get("nodes", [])}


def compare(name, before, after, new, healthy):
    """Errors between two sets of verdicts; healthy: the nodes known to be good, or None where that is unknown."""
    wrong, noted = [], []
    for node, was in before.items():
        now = after.get(new.get(node, node), "absent")
        if now == was:
            continue
        line = "%s: %s was %s, is %s" % (name, node, was, now)
        good = node in healthy if healthy is not None else was == "pass"
        if now in BAD and was not in BAD and good:
            wrong.append(line)
        elif was in BAD and (now == "pass" or (now not in BAD and name != "a tenth of the cells dropped")):
            (wrong if now == "pass" or name in changes.EXACT else noted).append(line)
        elif name in changes.EXACT:
            wrong.append(line)
        else:
            noted.append(line)
    added = new.get("+")
    if added and after.get("onemore") in BAD and before.get(added) == "pass":
        wrong.append("%s: the new node is %s" % (name, after["onemore"]))
    return wrong, noted


def relations(binary, files, healthy):
    """Results of every change that applies: (name, wrong, noted)."""
    before = outcomes(score.judge(binary, files))
    if before is None:
        return [("as it is", ["no verdicts"], [])]
    out = []
    for name, change in list(changes.EXACT.items()) + list(changes.LOOSE.items()):
        changed = change(files)
        if changed is None:
            continue
        after = outcomes(score.judge(binary, changed[0]))
        if after is None:
            out.append((name, ["%s: no verdicts" % name], []))
        else:
            out.append((name,) + compare(name, before, after, changed[1], healthy))
    return out


def of_kind(job):
    binary, name, seed = job
    kinds.load()
    case = kinds.make(name, seed)
    healthy = set(case.nodes) - case.truth.bad_nodes()
    return "%s %d" % (name, seed), relations(binary, case.files, healthy)


def of_folder(job):
    binary, folder = job
    files = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            with open(path, "rb") as source:
                data = source.read()
            try:
                files[os.path.relpath(path, folder)] = data.decode()
            except UnicodeDecodeError:
                files[os.path.relpath(path, folder)] = data
    return folder, relations(binary, files, None)


def main(args):
    start = time.time()
    with ProcessPoolExecutor(args.jobs) as pool:
        if args.folder:
            results = list(pool.map(of_folder, [(args.binary, os.path.abspath(f)) for f in args.folder]))
        else:
            seeds = range(args.first_seed, args.first_seed + (args.seeds or 1))
            jobs = [(args.binary, name, seed) for name in kinds.chosen(args.kind, args.every) for seed in seeds]
            results = list(pool.map(of_kind, jobs, chunksize=2))
    tried, broken, noted = {}, {}, {}
    for what, found in results:
        for name, wrong, notes in found:
            tried[name] = tried.get(name, 0) + 1
            noted[name] = noted.get(name, 0) + bool(notes)
            if wrong:
                broken.setdefault(name, []).append((what, wrong))
    for name in sorted(tried):
        bad = broken.get(name, [])
        print("%-30s tried %d, broken %d, otherwise changed %d" % (name, tried[name], len(bad), noted[name]))
        for what, wrong in bad[:12]:
            print("    %s: %s%s" % (what, wrong[0][:150], " (and %d more)" % (len(wrong) - 1) if len(wrong) > 1 else ""))
    failed = sum(len(b) for b in broken.values())
    print("%.0f s" % (time.time() - start))
    print("%d passed, %d failed" % (sum(tried.values()) - failed, failed))
    return 1 if failed else 0
