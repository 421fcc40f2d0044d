"""Starts, stops, kills and removes the units of the package under the systemd of the
machine that ci/fresh-machine has booted, and checks the results.

    units.py RUN audit|watch

RUN as in follow.py. `audit` installs the package first; `watch` finds the service at
work, as docs/first-hour-slurm.md leaves it. Ends with 1 at the first thing that is not
as the units or their documentation say.
"""

import json
import subprocess
import sys
import time

CONFIG = "/etc/fabricgate/fabricgate.toml"
AUDIT, TIMER, WATCH = "fabricgate-audit.service", "fabricgate-audit.timer", "fabricgate-watch.service"
# systemd-analyze's scale of exposure, from 0 to 10; the units had 1.4 when this was written.
EXPOSURE = 2.0


class NotAsSaid(Exception):
    """Something is not as the units say."""


class Machine:
    def __init__(self, run):
        self.run = run

    def ask(self, *words, codes=(0,), typed=None):
        ran = subprocess.run([self.run, *words], capture_output=True, text=True, timeout=600, input=typed or "")
        if codes is not None and ran.returncode not in codes:
            raise NotAsSaid(f"{' '.join(words)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
        return ran.stdout.strip()

    def shell(self, text, codes=(0,)):
        return self.ask("bash", codes=codes, typed=text)

    def shown(self, unit, *names):
        return tuple(self.ask("systemctl", "show", "--property", name, "--value", unit) for name in names)

    def mark(self):
        """Where the journal is now."""
        lines = self.ask("journalctl", "--no-pager", "--lines", "1", "--show-cursor").split("\n")
        return lines[-1].removeprefix("-- cursor: ")

    def since(self, mark, unit):
        return self.ask("journalctl", "--no-pager", "--output", "cat", "--after-cursor", mark, "--unit", unit)


def until(what, look, patience=120):
    begun = time.monotonic()
    while time.monotonic() - begun < patience:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise NotAsSaid(f"{what} was not seen within {patience} s")


def hold(wanted, what):
    if not wanted:
        raise NotAsSaid(what)


def seen(what):
    print(f"fresh-machine:   seen: {what}", flush=True)


def fails(machine, unit, status, words, action="start"):
    """The unit fails with this status, logs these words, and is not restarted."""
    mark = machine.mark()
    machine.ask("systemctl", action, unit, codes=None)
    until(f"{unit} failing", lambda: machine.shown(unit, "ActiveState") == ("failed",))
    text = machine.since(mark, unit)
    hold(f"status={status}" in text, f"{unit} did not end with {status}:\n{text}")
    hold(words in text, f"{unit} does not say {words!r}:\n{text}")
    # Longer than nothing, so that a restart would show.
    time.sleep(1)
    hold(machine.shown(unit, "ActiveState", "NRestarts") == ("failed", "0"), f"{unit} was started again")
    machine.ask("systemctl", "reset-failed", unit)
    seen(f"{unit}: failed with {status}, not started again: {next(line for line in text.splitlines() if words in line)}")


def configure(machine, text):
    machine.ask("sh", "-c", f"cat >{CONFIG}", typed=text)


SITE = """claims = "claims.toml"
run_dir = "%s"
[launcher]
kind = "sim"
scenario = "rack.toml"
"""


def audit(machine):
    machine.shell("cd /root && apt-get install -y ./fabricgate_*.deb >/dev/null 2>&1")
    for unit in (AUDIT, WATCH):
        lines = machine.ask("systemd-analyze", "--no-pager", "security", unit).split("\n")
        exposure = float(lines[-1].split(":")[1].split()[0])
        hold(exposure <= EXPOSURE, f"{unit} has an exposure of {exposure}")
        seen(f"{unit}: exposure {exposure}, of 10")
    machine.ask("systemd-analyze", "--man=no", "verify", AUDIT, TIMER, WATCH)

    fails(machine, AUDIT, "2/INVALIDARGUMENT", "claims is missing")
    fails(machine, WATCH, "2/INVALIDARGUMENT", "claims is missing")

    machine.shell("cp /usr/share/doc/fabricgate/examples/rack-healthy.toml /etc/fabricgate/rack.toml\n"
                  "fabricgate sim claims /etc/fabricgate/rack.toml >/etc/fabricgate/claims.toml")
    # A folder that the sandbox does not let it write to.
    configure(machine, SITE % "/etc/fabricgate/runs")
    fails(machine, AUDIT, "5/NOTINSTALLED", "Read-only file system")
    # A watch needs a scheduler, and a simulated fabric is not one.
    configure(machine, SITE % "/var/lib/fabricgate/runs")
    fails(machine, WATCH, "2/INVALIDARGUMENT", "[gate]")

    # Ended in the middle: measurements are kept, and the run records that it was ended.
    mark = machine.mark()
    machine.ask("systemctl", "start", "--no-block", AUDIT)
    until("the first results", lambda: machine.shell("cat /var/lib/fabricgate/runs/*/results.jsonl 2>/dev/null | head -n 40 | wc -l", codes=None) == "40")
    begun = time.monotonic()
    machine.ask("systemctl", "stop", AUDIT)
    took = time.monotonic() - begun
    run = json.loads(machine.shell("cat /var/lib/fabricgate/runs/*/run.json"))
    hold(run["state"] == "partial", f"the state of the stopped run is {run['state']}")
    hold("SIGKILL" not in machine.since(mark, AUDIT), "the audit had to be killed")
    left = machine.ask("systemctl", "show", "--property", "ControlGroup", "--value", AUDIT)
    hold(not left, f"something is left in {left}")
    seen(f"{AUDIT}: stopped within {took:.1f} s, the run is {run['state']}: {machine.since(mark, AUDIT).splitlines()[-1]}")
    machine.ask("systemctl", "reset-failed", AUDIT, codes=None)
    machine.shell("rm -r /var/lib/fabricgate/runs/*")

    # No other user may read its files, and it wrote as its own user.
    machine.ask("systemctl", "start", AUDIT)
    owners = set(machine.shell("find /var/lib/fabricgate -printf '%u:%g\\n'").split("\n"))
    hold(owners == {"fabricgate:fabricgate"}, f"/var/lib/fabricgate has files of {owners}")
    others = machine.shell("find /var/lib/fabricgate -perm /o=rwx")
    hold(not others, f"everybody may look into {others}")
    seen(f"{AUDIT}: a pass; all it wrote is its user's, and no other user may read it")

    # Reinstalled, the timer continues; removed, nothing of it is left.
    machine.ask("systemctl", "enable", "--now", TIMER)
    machine.shell("cd /root && dpkg -i fabricgate_*.deb >/dev/null 2>&1")
    hold(machine.shown(TIMER, "ActiveState", "UnitFileState", "NeedDaemonReload") == ("active", "enabled", "no"),
         f"after an upgrade the timer is {machine.shown(TIMER, 'ActiveState', 'UnitFileState', 'NeedDaemonReload')}")
    seen("an upgrade leaves the timer active and enabled")
    machine.shell("dpkg -r fabricgate >/dev/null 2>&1")
    hold(machine.shown(TIMER, "ActiveState", "LoadState") == ("inactive", "not-found"), "the timer outlives its package")
    dangling = machine.shell("find /etc/systemd -name 'fabricgate*'")
    hold(not dangling, f"left of a removed package: {dangling}")
    hold(machine.shell("ls /var/lib/fabricgate/runs") != "", "the run folders went with the package")
    seen("a removal stops and disables the timer and keeps the run folders")


def watch(machine):
    def pid():
        return machine.shown(WATCH, "MainPID")[0]

    # The loop must not be in the middle of a measurement that a kill would interrupt.
    first = pid()
    machine.ask("kill", "-KILL", first)
    until("the watch started again", lambda: pid() not in ("0", first) and machine.shown(WATCH, "ActiveState") == ("active",))
    restarts, after = machine.shown(WATCH, "NRestarts", "RestartUSec")
    hold(restarts == "1", f"the watch was restarted {restarts} times")
    seen(f"{WATCH}: killed, it was started again after {after}")
    until("the watch answering again", lambda: machine.shell("exec 3<>/dev/tcp/127.0.0.1/9810 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3", codes=None).split()[1:2] == ["200"])
    mark = machine.mark()
    begun = time.monotonic()
    machine.ask("systemctl", "stop", WATCH)
    took = time.monotonic() - begun
    hold(machine.shown(WATCH, "ActiveState", "Result") == ("inactive", "success"),
         f"stopped, the watch is {machine.shown(WATCH, 'ActiveState', 'Result')}:\n{machine.since(mark, WATCH)}")
    hold(machine.ask("squeue", "--noheader") == "", "jobs are left in Slurm")
    seen(f"{WATCH}: stopped within {took:.1f} s with success, no job is left: {machine.since(mark, WATCH).splitlines()[-1]}")
    # Retrying does not fix a mistake in the configuration.
    machine.shell(f"cp {CONFIG} /root/kept && echo 'typo = 1' >>{CONFIG}")
    fails(machine, WATCH, "2/INVALIDARGUMENT", "typo")
    machine.shell(f"cat /root/kept >{CONFIG}")
    machine.ask("systemctl", "start", WATCH)
    until("the watch at work", lambda: machine.shown(WATCH, "ActiveState", "SubState") == ("active", "running"))
    seen(f"{WATCH}: at work again with the configuration mended")


try:
    {"audit": audit, "watch": watch}[sys.argv[2]](Machine(sys.argv[1]))
except NotAsSaid as error:
    print(f"fresh-machine: {error}", file=sys.stderr)
    sys.exit(1)
