"""Checks one condition on the programs of the lab; exits with 0 if it holds."""
import json
import sys
import urllib.request


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def main(question, port, name="", node=""):
    base = f"http://127.0.0.1:{port}"
    if question == "exporter":
        text = get(base + "/metrics")
        return "fabricgate_node_verdict{" in text and "node_textfile_scrape_error 0" in text
    if question == "ready":
        return "OK" in get(base + "/-/ready")
    if question == "firing":
        alerts = json.loads(get(base + "/api/v1/alerts"))["data"]["alerts"]
        found = [a for a in alerts if a["labels"]["alertname"] == name and a["labels"].get("node", "") == node]
        return bool(found) and found[0]["state"] == "firing"
    alerts = json.loads(get(base + "/api/v2/alerts"))
    found = [a for a in alerts if a["labels"]["alertname"] == name and a["labels"].get("node", "") == node]
    return {"alert": len(found) >= 1, "once": len(found) == 1, "over": not found}[question]


try:
    sys.exit(0 if main(*sys.argv[1:]) else 1)
except OSError:
    sys.exit(1)
