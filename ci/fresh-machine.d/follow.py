"""Follows a page of the documentation on the machine that ci/fresh-machine has booted.

    follow.py RUN PAGE

RUN is a program that runs its arguments inside that machine, as root. Of PAGE, every
command of its `sh` blocks is run, in order and as written, and must end with the exit
code of its comment (`# exit code 3`; by default 0); a here-document belongs to its
command. The rest is in comments of the page that a reader does not see:

    <!-- see: WHAT ARGUMENTS -->   a condition that must hold now, each a function below
    <!-- lab: COMMAND -->          a step or an event of simulated machines only
    <!-- shell: COMMAND -->        the shell of the commands from here on; the page must show it too
    <!-- follow: PAGE HEADING -->  the commands of that page below that heading

Ends with 1 at the first difference from the page. It must run in the network
of that machine, where it also is the receiver of alerts, on port 9095.
"""

import fnmatch
import http.server
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

RECEIVER = 9095
PROMETHEUS = "http://127.0.0.1:9090"
CONFIG = "/etc/fabricgate/fabricgate.toml"
TEXTFILE = "/var/lib/prometheus/node-exporter/fabricgate.prom"
UNIT = "fabricgate-audit.service"
TIMER = "fabricgate-audit.timer"
# Prometheus evaluates its rules every 15 s, and the machine may be busy.
PATIENCE_S = 240


class NotAsSaid(Exception):
    """A difference from the page."""


def steps(page, only=None):
    """Commands and comments, in the order of the page, each with its line."""
    text = page.read_text()
    lines = text.split("\n")
    at, inside, heading = 0, False, ""
    while at < len(lines):
        line = lines[at]
        at += 1
        place = f"{page.name}:{at}"
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if line.startswith("```"):
            inside = line == "```sh"
        elif only is not None and heading != only:
            continue
        elif not inside:
            found = re.fullmatch(r"<!-- (see|lab|shell|follow): (.*) -->", line.strip())
            if found and found.group(1) == "follow":
                other, section = found.group(2).split(" ", 1)
                below = list(steps(page.parent / other, section))
                if not below:
                    raise NotAsSaid(f"{place}: {other} has no commands below {section!r}")
                yield from below
            elif found:
                if found.group(1) == "shell" and found.group(2) != "bash" and f"    {found.group(2)}" not in lines:
                    raise NotAsSaid(f"{place}: the page does not show this shell")
                yield place, found.group(1), found.group(2)
        elif line.strip() and not line.startswith("#"):
            command = line
            here = re.search(r"<<'(\w+)'", line)
            while here and lines[at - 1] != here.group(1):
                command += "\n" + lines[at]
                at += 1
            while command.endswith("\\"):
                command += "\n" + lines[at]
                at += 1
            yield place, "run", command


class Machine:
    """The machine inside, and its state between two checks."""

    def __init__(self, run):
        self.run = run
        self.alerts = []
        self.cursor = ""
        self.triggered = ""

    def ask(self, *words, codes=(0,)):
        ran = subprocess.run([self.run, *words], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        if ran.returncode not in codes:
            raise NotAsSaid(f"{' '.join(words)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
        return ran.stdout.strip()

    def shown(self, unit, name):
        return self.ask("systemctl", "show", "--property", name, "--value", unit)

    def entries(self, unit):
        """New entries of a unit in the journal since the last check."""
        after = ["--after-cursor", self.cursor] if self.cursor else []
        text = self.ask("journalctl", "--no-pager", "--output", "json", "--unit", unit, *after)
        return [json.loads(line) for line in text.split("\n") if line]

    def journal(self, count=25):
        return self.ask("journalctl", "--no-pager", "--lines", str(count), "--unit", UNIT)


def query(path, **values):
    try:
        with urllib.request.urlopen(f"{PROMETHEUS}{path}?{urllib.parse.urlencode(values)}", timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise NotAsSaid(f"{path} {values}: {error.read().decode()}") from error


def until(what, look, patience=PATIENCE_S):
    """The first result of `look`, which is called repeatedly."""
    begun, last = time.monotonic(), ""
    while time.monotonic() - begun < patience:
        try:
            found = look()
            if found:
                return found
        except (OSError, NotAsSaid) as error:
            last = f": {error}"
        time.sleep(0.5)
    raise NotAsSaid(f"{what} was not seen within {patience} s{last}")


# --- what can be seen -------------------------------------------------------------


def nothing_enabled(machine):
    for unit in (TIMER, "fabricgate-watch.service"):
        state = machine.ask("systemctl", "is-enabled", unit, codes=(0, 1))
        active = machine.ask("systemctl", "is-active", unit, codes=(0, 3))
        if (state, active) != ("disabled", "inactive"):
            raise NotAsSaid(f"{unit} is {state} and {active} after the installation")
    return "units are there, disabled and inactive"


def audit_ended(machine, code):
    """By systemd's journal: `systemctl show` forgets a unit that ended well and that no unit references."""
    def look():
        entries = machine.entries(UNIT)
        ended = [it for it in entries if it.get("JOB_TYPE") == "start" and it.get("JOB_RESULT")]
        return (entries, ended[-1]) if ended else None

    entries, ended = until("the end of an audit", look)
    machine.cursor = ended["__CURSOR"]
    status = ([it["EXIT_STATUS"] for it in entries if "EXIT_STATUS" in it] or ["0"])[-1]
    if status != code or (ended["JOB_RESULT"] == "done") != (code == "0"):
        raise NotAsSaid(f"the audit ended with {status} ({ended['JOB_RESULT']}), expected {code}:\n{machine.journal()}")
    troubles = [it["MESSAGE"] for it in entries if re.match(r"fabricgate: (metrics|history|notify):", str(it["MESSAGE"]))]
    if troubles:
        raise NotAsSaid("the audit's journal complains: " + "; ".join(troubles))
    return f"the audit ended with {status}; systemd: {ended['MESSAGE']}"


def timer_fired(machine, code):
    ended = audit_ended(machine, code)
    # Read after the end of the audit: a reload of the timer may have fired it once more before.
    at = machine.shown(TIMER, "LastTriggerUSec")
    if at in ("", machine.triggered):
        raise NotAsSaid(f"an audit ended that the timer did not start; it fired last at {at!r}")
    machine.triggered = at
    return f"the timer fired by itself, {at}; {ended}"


def textfile(machine, verdict, count):
    mode = machine.ask("stat", "--format", "%U %a", TEXTFILE)
    if mode != "fabricgate 644":
        raise NotAsSaid(f"{TEXTFILE} is {mode}, expected fabricgate 644")
    lines = machine.ask("cat", TEXTFILE).split("\n")
    found = [line for line in lines if line.startswith("fabricgate_node_verdict{") and f'verdict="{verdict}"}} 1' in line]
    if len(found) != int(count):
        raise NotAsSaid(f"{TEXTFILE} has {len(found)} nodes with {verdict}, expected {count}")
    return f"{TEXTFILE}, {len(lines)} lines, {count} nodes {verdict}"


def history(machine, count):
    document = json.loads(machine.ask("runuser", "-u", "fabricgate", "--", "fabricgate", "history", "--json", "--config", CONFIG))
    if document["runs"] != int(count):
        raise NotAsSaid(f"the history has {document['runs']} runs, expected {count}")
    return f"the history has {count} runs"


def scraped(_machine, verdict, count):
    def look():
        found = query("/api/v1/query", query=f'count(fabricgate_node_verdict{{verdict="{verdict}"}} == 1)')["result"]
        return found and found[0]["value"][1] == count

    until(f"{count} nodes {verdict} in Prometheus", look)
    return f"Prometheus has scraped {count} nodes {verdict}"


def rules():
    groups = [group for group in query("/api/v1/rules")["groups"] if group["name"].startswith("fabricgate")]
    return [rule for group in groups for rule in group["rules"]]


def no_alert(_machine):
    loaded = until("our rules, each evaluated", lambda: (all(r["health"] == "ok" for r in rules()) and rules()))
    firing = [rule["name"] for rule in loaded if rule["state"] == "firing"]
    if firing:
        raise NotAsSaid(f"of a healthy rack these fire: {', '.join(firing)}")
    return f"Prometheus evaluates {len(loaded)} of fabricgate's rules, none fires"


def firing(_machine, name, node):
    def look():
        alerts = query("/api/v1/alerts")["alerts"]
        return [a for a in alerts if a["labels"]["alertname"] == name and a["labels"].get("node") == node and a["state"] == "firing"]

    found = until(f"{name} of {node} firing", look)
    others = {r["name"] for r in rules() if r["state"] == "firing"} - {name}
    if others:
        raise NotAsSaid(f"besides {name} these fire: {', '.join(sorted(others))}")
    return f"{name} fires: {found[0]['annotations']['description']}"


def alerted(machine, name, node, status):
    def look():
        return [a for a in machine.alerts if (a["labels"]["alertname"], a["labels"].get("node"), a["status"]) == (name, node, status)]

    found = until(f"{name} of {node} {status} at the receiver", look)
    return f"the receiver got an alert from Alertmanager: {found[0]['status']}: {found[0]['annotations']['summary']}"


def dashboard(machine, *without):
    """Every query answers, and with data unless all its metrics are listed: `leading`, `certificate*`."""
    board = json.loads(machine.ask("cat", "/usr/share/fabricgate/dashboard.json"))
    targets = [(panel["title"], target["expr"].replace("$domain", ".*")) for panel in board["panels"] for target in panel.get("targets", [])]

    def is_named(expression):
        return all(any(fnmatch.fnmatch(it, name) for name in without) for it in re.findall(r"fabricgate_(\w+)", expression))

    def empty():
        return [(title, expression) for title, expression in targets if not query("/api/v1/query", query=expression)["result"]]

    def wrong():
        return [f"{title}: {expression}" for title, expression in empty() if not is_named(expression)]

    # A rate needs two readings, and the first of them is yet to come.
    begun = time.monotonic()
    while (found := wrong()) and time.monotonic() - begun < 120:
        time.sleep(5)
    if found:
        raise NotAsSaid("no data behind " + "; ".join(found))
    return f"{len(targets)} queries of the dashboard answered, {len(targets) - len(empty())} of them with data"


def nightly(machine):
    at = machine.shown(TIMER, "NextElapseUSecRealtime")
    if not re.search(r" 02:(1[5-9]|2\d|3[0-6]):", at):
        raise NotAsSaid(f"the timer fires next at {at!r}, expected between 02:15 and 02:36")
    return f"the timer fires next at {at}"


def drained(machine, count, *nodes):
    """Nodes that Slurm has drained with a reason of fabricgate's."""
    lines = machine.ask("sinfo", "--noheader", "--Node", "--partition", "main", "--states", "drain", "--Format", "NodeList:30,Reason:120").split("\n")
    found = dict(line.split(maxsplit=1) for line in lines if line.strip())
    if len(found) != int(count) or set(found) != set(nodes) or any(not it.startswith("fabricgate:") for it in found.values()):
        raise NotAsSaid(f"Slurm has drained {found}, expected {count} with our reason: {' '.join(nodes)}")
    return "; ".join(f"Slurm has {node} drained: {reason.strip()}" for node, reason in found.items()) or "Slurm has no node drained"


def watch(path):
    with urllib.request.urlopen(f"http://127.0.0.1:9810{path}", timeout=10) as answer:
        return answer.read().decode()


def watching(machine):
    ready = until("the watch at work", lambda: watch("/readyz"))
    active, restarts = machine.shown("fabricgate-watch.service", "ActiveState"), machine.shown("fabricgate-watch.service", "NRestarts")
    if (active, restarts) != ("active", "0"):
        raise NotAsSaid(f"fabricgate-watch.service is {active} after {restarts} restarts")
    return f"the watch is active, /readyz answers {ready.strip()!r}"


def certified(_machine, count):
    until(f"{count} certificates that count", lambda: f'fabricgate_certificates{{state="valid"}} {count}\n' in watch("/metrics"), 600)
    return f"the watch has certified until {count} nodes have a certificate that counts"


SEEN = {function.__name__.replace("_", "-"): function for function in
        (nothing_enabled, audit_ended, timer_fired, textfile, history, scraped, no_alert, firing, alerted, dashboard,
         nightly, drained, watching, certified)}


# --- following --------------------------------------------------------------------


def receive(machine):
    """Receives Alertmanager's webhooks."""

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            machine.alerts.extend(body.get("alerts", []))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", RECEIVER), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main(run, page):
    machine = Machine(run)
    receive(machine)
    page = pathlib.Path(page)
    shell, commands, seen = "bash", 0, 0
    for place, kind, what in steps(page):
        begun = time.monotonic()
        if kind == "shell":
            shell = what
            continue
        if kind == "see":
            word, *arguments = what.split()
            try:
                result = SEEN[word](machine, *arguments)
            except NotAsSaid as error:
                raise NotAsSaid(f"{place}: {error}") from error
            seen += 1
            print(f"fresh-machine:   seen: {result}", flush=True)
            continue
        code = re.search(r"# exit code (\d+)$", what.split("\n")[0])
        expected = int(code.group(1)) if code else 0
        # Input of a shell other than a command line: a here-document too.
        inner = shell if kind == "run" else "bash"
        ran = subprocess.run([run, "sh", "-c", f"cd /root && {inner}"], capture_output=True, text=True, timeout=900, input=what + "\n")
        if ran.returncode != expected:
            raise NotAsSaid(f"{place}: exit code {ran.returncode}, expected {expected}: {what}\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}")
        shown = what.split("\n")[0]
        if kind == "run":
            commands += 1
            print(f"fresh-machine: {place}: {shown} ({ran.returncode}, {time.monotonic() - begun:.1f} s)", flush=True)
        else:
            print(f"fresh-machine:   in the lab: {shown}", flush=True)
    print(f"fresh-machine: {page.name}: {commands} commands as written, {seen} looks")


try:
    main(*sys.argv[1:])
except NotAsSaid as error:
    print(f"fresh-machine: {error}", file=sys.stderr)
    sys.exit(1)
