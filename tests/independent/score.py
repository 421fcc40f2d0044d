"""Runs the judge on a case and scores its verdicts against the truth."""
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

from truth import BAD, BLAMELESS, ends

SECONDS = 120


@dataclass
class Score:
    right: bool = False
    faulty: int = 0
    found: int = 0
    blamed: int = 0                 # healthy parts that a finding blames
    wrong: list = field(default_factory=list)
    verdicts: dict = field(default_factory=dict)


def write(files, folder):
    for path, text in files.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb" if isinstance(text, bytes) else "w") as out:
            out.write(text)


def judge(binary, files, keep=None, extra=()):
    """Verdicts of the binary on a folder with these files; a dict with "error" where it returns none."""
    folder = keep or tempfile.mkdtemp(prefix="independent-")
    try:
        os.makedirs(folder, exist_ok=True)
        write(files, folder)
        return judge_folder(binary, folder, extra)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def judge_folder(binary, folder, extra=()):
    env = {k: v for k, v in os.environ.items() if not k.startswith("FABRICGATE")}
    try:
        done = subprocess.run([binary, "judge", folder, "--json", "--no-progress", *extra], capture_output=True,
                              timeout=SECONDS, env=env, cwd=folder)
    except subprocess.TimeoutExpired:
        return {"error": "no answer within %d s" % SECONDS}
    try:
        out = json.loads(done.stdout)
    except ValueError:
        return {"error": "exit %d: %s" % (done.returncode, done.stderr.decode("utf-8", "replace")[-400:])}
    out["exit"] = done.returncode
    return out


def place(finding):
    """A finding in short form: outcome, locus, class, ratio."""
    x = finding.get("locus", {})
    words = [x.get("kind", "?"), x.get("node", x.get("domain", ""))]
    if x.get("gpu") is not None:
        words[-1] += ":%s" % x["gpu"]
    words += [str(x[k]) for k in ("peer", "rail", "direction") if x.get(k) is not None]
    return "%s %s (%s %s)" % (finding.get("outcome"), " ".join(words), finding.get("class"), finding.get("ratio"))


def suspects(truth, locus):
    """True for a pair between two faulty GPUs or ports, or a blamed end of a faulty pair: the truth explains both."""
    if locus.get("kind") != "pair":
        return False
    bad = truth.bad_nodes()
    return all(e.split(":")[0] in bad for e in ends(locus))


def score(case, verdicts):
    """Right: the outcome is acceptable, every faulty part is found, no healthy part is blamed, and no node is unknown that must pass."""
    truth, out = case.truth, Score(verdicts=verdicts)
    must = [g for g in truth.faults if g.must]
    out.faulty = len(must)
    if "error" in verdicts:
        out.wrong.append("no verdicts: " + verdicts["error"])
        return out
    bad = [f for f in verdicts.get("findings", []) if f.get("outcome") in BAD]
    loci = [f.get("locus", {}) for f in bad]
    if verdicts.get("outcome") not in truth.overall:
        out.wrong.append("outcome %s, not %s" % (verdicts.get("outcome"), "/".join(sorted(truth.overall))))
    named = [f.get("locus", {}) for f in verdicts.get("findings", []) if f.get("outcome") != "pass"]
    for fault in must:
        if fault.found(named if fault.soft else loci):
            out.found += 1
        else:
            out.wrong.append("missed %s" % fault.name)
    blamed, faulty = set(), truth.bad_nodes()
    for finding, locus in zip(bad, loci):
        allowed = any(g.allows(locus) for g in truth.faults) or any(p.fits(locus) for p in truth.also)
        coarse = locus.get("kind") in ("node", "tray") and locus.get("node") in faulty
        if allowed or coarse or suspects(truth, locus) or locus.get("kind") in BLAMELESS:
            continue
        out.blamed += 1
        blamed.add(locus.get("node"))
        out.wrong.append("healthy: %s" % place(finding))
    nodes(case, verdicts, blamed, out)
    out.right = not out.wrong
    return out


def nodes(case, verdicts, blamed, out):
    """The verdicts about nodes."""
    truth = case.truth
    faulty = truth.bad_nodes()
    reported = {n.get("node"): n for n in verdicts.get("nodes", [])}
    for name in case.nodes:
        outcome = reported.get(name, {}).get("outcome", "absent")
        if outcome in BAD:
            if name not in faulty:
                if name not in blamed:
                    out.blamed += 1
                out.wrong.append("healthy node %s is %s: %s" % (name, outcome, reported[name].get("reason", "")[:120]))
        elif name in faulty and outcome == "pass" and any(g.must and name in g.nodes - g.silent for g in truth.faults):
            out.wrong.append("node %s passes" % name)
        elif name in truth.must_unknown and outcome == "pass":
            out.wrong.append("node %s passes, and must not" % name)
        elif outcome != "pass" and name not in faulty | truth.unknown and "*" not in truth.unknown:
            out.wrong.append("node %s is %s: %s" % (name, outcome, reported.get(name, {}).get("reason", "")[:120]))
