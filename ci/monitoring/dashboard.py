"""Checks the consistency of dashboard.json, and writes its expressions as rules for promtool.

    dashboard.py FOLDER RULES

Also checks that alerts_test.yml has, for every rule of alerts.yml, a case in which it
fires and one in which it does not. No parser of YAML is needed: both files have one
rule or case a line.
"""
import json
import pathlib
import re
import sys


def main(folder, rules):
    folder = pathlib.Path(folder)
    board = json.loads((folder / "dashboard.json").read_text())
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids)), "two panels have one id"
    taken = set()
    for panel in panels:
        place, title = panel["gridPos"], panel["title"]
        assert place["x"] + place["w"] <= 24, f"{title}: beyond the right edge"
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{title}: over another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}", f"{title}: a data source of its own"
            assert panel["targets"], f"{title}: shows nothing"
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "domain"}, variables
    lines = ["groups:", "  - name: panels", "    rules:"]
    count = 0
    for panel in panels:
        for target in panel.get("targets", []):
            expression = target["expr"]
            named = set(re.findall(r"\$\{?(\w+)", expression))
            assert named <= variables, f"{panel['title']}: unknown variables {named - variables}"
            expression = expression.replace("$domain", "block01")
            lines.append(f"      - {{ record: panel:{count}, expr: {json.dumps(expression)} }}")
            count += 1
    pathlib.Path(rules).write_text("\n".join(lines) + "\n")

    alerts = re.findall(r"^ +- alert: (\w+)$", (folder / "alerts.yml").read_text(), re.M)
    tests = (folder / "alerts_test.yml").read_text()
    for alert in alerts:
        fires = re.search(rf"alertname: {alert}\n +exp_alerts:\n", tests)
        calm = re.search(rf"alertname: {alert}\n +exp_alerts: \[\]", tests)
        assert fires and calm, f"{alert}: no test of {'its silence' if fires else 'its firing'}"
    print(f"monitoring: {len(panels)} panels, {count} expressions; {len(alerts)} rules, each with both cases")


main(*sys.argv[1:])
