"""The cost of the standing gate on 1,000 and 5,000 nodes of a real API server: its
memory, its requests by the server's audit log, the time to its first decision, and
the cost of changes of nodes. Nodes are objects without a kubelet.

ci/bench-kubernetes watch starts the server and names the measured program.
"""

import collections
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

FLEETS = [1_000, 5_000]
RACK = 18
CHANGED = 100
IDLE_S = 120


class Server:
    """The server as its administrator sees it, with a separate user agent."""

    def __init__(self, kubeconfig):
        with open(kubeconfig, encoding="utf-8") as file:
            text = file.read()
        self.at = re.search(r'server: "?https://([^",}]+)', text)[1]
        authority = re.search(r'certificate-authority: "?([^",}]+)', text)[1]
        self.context = ssl.create_default_context(cafile=authority)
        self.token = re.search(r"token: ([^\s}]+)", text)[1]
        self.own = threading.local()

    def ask(self, method, path, body=None, kind="application/json"):
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPSConnection(self.at, context=self.context)
        headers = {"Authorization": f"Bearer {self.token}", "User-Agent": "bench",
                   "Content-Type": kind}
        data = None if body is None else json.dumps(body)
        try:
            self.own.connection.request(method, path, data, headers)
            answer = self.own.connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            # The server closes connections that were idle for long.
            self.own.connection.close()
            self.own.connection.request(method, path, data, headers)
            answer = self.own.connection.getresponse()
        document = json.loads(answer.read())
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {document.get('message')}")
        return document


def at_once(work, items, count=8):
    """Does work for every item, several at a time."""
    items, failed = collections.deque(items), []

    def some():
        try:
            while True:
                work(items.popleft())
        except IndexError:
            pass
        except Exception as error:  # Raised by the waiting thread.
            failed.append(error)

    threads = [threading.Thread(target=some) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def name(number):
    return f"node{number:04}"


def ready(at="2030-01-01T00:00:00Z"):
    return {"type": "Ready", "status": "True", "reason": "KubeletReady",
            "lastHeartbeatTime": at, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def make(server, number):
    """A node as a device plugin and the feature discovery leave it."""
    node = name(number)
    clique = f"5eed5eed-0000-4000-8000-{number // RACK:012}.1"
    labels = {"nvidia.com/gpu.clique": clique, "nvidia.com/gpu.present": "true",
              "nvidia.com/gpu.count": "4", "kubernetes.io/hostname": node}
    server.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node",
               "metadata": {"name": node, "labels": labels}})
    gpus = {"nvidia.com/gpu": "4"}
    words = ["architecture", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion",
             "kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"]
    info = {word: "" for word in words} | {"bootID": f"boot-{node}"}
    server.ask("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"capacity": gpus,
               "allocatable": gpus, "conditions": [ready()], "nodeInfo": info}},
               "application/strategic-merge-patch+json")


def fill(server, numbers):
    at_once(lambda number: make(server, number), numbers)
    # Only then does the cluster remove the taint of new nodes.
    while any(node["spec"].get("taints") for node in server.ask("GET", "/api/v1/nodes")["items"]):
        time.sleep(1)


def requests(folder):
    """Number of the program's requests, by verb and resource."""
    time.sleep(1)  # The log is written after the answers.
    counted = collections.Counter()
    with open(os.path.join(folder, "audit.jsonl"), encoding="utf-8") as log:
        for line in log:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # The last line may be incomplete.
            # All other clients here have a user agent; a watch is logged when it begins.
            if event.get("userAgent") or event["user"]["username"] != "admin":
                continue
            if event["verb"] == "watch" and event["stage"] != "ResponseStarted":
                continue
            resource = event.get("objectRef", {}).get("resource", event["requestURI"])
            counted[f"{event['verb']} {resource}"] += 1
    return counted


def listed(counted):
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items())) or "none"


class Watch:
    """The program, which holds its Lease, reads, decides, and starts nothing."""

    def __init__(self, program, kubeconfig, size):
        self.folder = tempfile.TemporaryDirectory()
        at = self.folder.name
        with open(f"{at}/claims.toml", "w", encoding="utf-8") as file:
            for first in range(0, size, RACK):
                last = min(first + RACK, size) - 1
                file.write(f'[[domain]]\nname = "rack{first // RACK:03}"\n'
                           f'nodes = "node[{first:04}-{last:04}]"\nplatform = "gb200-nvl72"\n')
        with open(f"{at}/fabricgate.toml", "w", encoding="utf-8") as file:
            off = ", ".join(f'{it} = "off"' for it in ("unverified", "missing", "expired", "repaired"))
            file.write(f'claims = "claims.toml"\n[gate]\nstate = "gate"\nthrough = "kubernetes"\n'
                       f'[gate.kubernetes]\nkubeconfig = "{kubeconfig}"\n'
                       f'[watch]\nprofiles = {{ {off} }}\nlease = {{ namespace = "default" }}\n')
        self.began = time.monotonic()
        with open(f"{at}/decisions", "w", encoding="utf-8") as out:
            with open(f"{at}/errors", "w", encoding="utf-8") as errors:
                words = [program, "--json", "--config", "fabricgate.toml", "watch", "--apply"]
                self.process = subprocess.Popen(words, cwd=at, stdout=out, stderr=errors)

    def events(self, kind):
        with open(f"{self.folder.name}/decisions", encoding="utf-8") as file:
            lines = [line for line in file if line.endswith("\n")]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def until(self, what, is_so):
        """Waits until its last decision meets the condition; how long that took."""
        began = time.monotonic()
        while not is_so(self.events("looked")):
            if self.process.poll() is not None or time.monotonic() - began > 300:
                with open(f"{self.folder.name}/errors", encoding="utf-8") as file:
                    raise RuntimeError(f"{what}: {file.read()} {self.events('trouble')}")
            time.sleep(0.02)
        return time.monotonic() - began

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            status = file.read()
        return [int(re.search(rf"{key}:\s+(\d+)", status)[1]) // 1024 for key in ("VmRSS", "VmHWM")]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def load():
    return f"load {os.getloadavg()[0]:.1f}"


def measure(server, folder, program, kubeconfig, size):
    before = requests(folder)
    watch = Watch(program, kubeconfig, size)
    try:
        watch.until("a decision", lambda seen: seen)
        took = time.monotonic() - watch.began
        print(f"{size} nodes: first decision {took:.1f} s after the start, {load()}")
        # Its watch concurrently begins with a separate list.
        time.sleep(10)
        after = requests(folder)
        print(f"  requests until then: {listed(after - before)}; {watch.cpu():.1f} s of processor")

        before, cpu = requests(folder), watch.cpu()
        time.sleep(IDLE_S)
        after = requests(folder)
        print(f"  idle for {IDLE_S} s: {listed(after - before)}; "
              f"{watch.cpu() - cpu:.2f} s of processor, {load()}")

        before, cpu, began = requests(folder), watch.cpu(), time.monotonic()
        beat = {"status": {"conditions": [ready("2030-01-01T00:00:10Z")]}}
        at_once(lambda number: server.ask("PATCH", f"/api/v1/nodes/{name(number)}/status", beat,
                "application/strategic-merge-patch+json"), range(CHANGED))
        time.sleep(5)
        print(f"  {CHANGED} heartbeats: {listed(requests(folder) - before)}; "
              f"{watch.cpu() - cpu:.2f} s of processor in {time.monotonic() - began:.0f} s")

        before, cpu, began = requests(folder), watch.cpu(), time.monotonic()
        at_once(lambda number: server.ask("DELETE", f"/api/v1/nodes/{name(number)}"),
                range(CHANGED))
        made = time.monotonic() - began
        took = watch.until("all gone", lambda seen: seen[-1]["nodes"] == size - CHANGED)
        time.sleep(15)
        print(f"  {CHANGED} nodes deleted in {made:.1f} s, decided on {took:.1f} s after the last: "
              f"{listed(requests(folder) - before)}; {watch.cpu() - cpu:.2f} s of processor in "
              f"{time.monotonic() - began:.0f} s, {load()}")
        now, most = watch.memory()
        print(f"  memory: {now} MB now, {most} MB at most", flush=True)
    finally:
        watch.end()
    fill(server, range(CHANGED))


def main():
    program, kubeconfig = sys.argv[1], os.environ["FABRICGATE_LAB_KUBERNETES"]
    server, made = Server(kubeconfig), 0
    for size in [int(size) for size in sys.argv[2:]] or FLEETS:
        began = time.monotonic()
        fill(server, range(made, size))
        print(f"{size - made} nodes made in {time.monotonic() - began:.0f} s", flush=True)
        made = size
        measure(server, os.path.dirname(kubeconfig), program, kubeconfig, size)


main()
