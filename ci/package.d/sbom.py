"""Turns `cargo metadata` into a CycloneDX document: see ci/sbom."""

import datetime
import json
import os
import sys
import tomllib
import uuid


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def licence(text):
    # `MIT/Apache-2.0` is how older crates write `MIT OR Apache-2.0`.
    return [{"expression": text.replace("/", " OR ")}] if text else []


def main():
    metadata = json.load(open(sys.argv[1]))
    locked = tomllib.load(open(sys.argv[2], "rb"))["package"]
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in locked}
    packages = {p["id"]: p for p in metadata["packages"]}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]

    # Linked crates, and those that build them; crates for tests only are not shipped.
    def used(node):
        return sorted({d["pkg"] for d in node["deps"]
                       if any(kind["kind"] in (None, "build") for kind in d["dep_kinds"])})

    reached, todo = set(), [root]
    while todo:
        at = todo.pop()
        if at not in reached:
            reached.add(at)
            todo += used(nodes[at])

    def component(id):
        package = packages[id]
        made = {
            "type": "library", "bom-ref": purl(package), "name": package["name"],
            "version": package["version"], "purl": purl(package), "scope": "required",
            "licenses": licence(package["license"]),
        }
        if package["description"]:
            made["description"] = " ".join(package["description"].split())
        checksum = checksums.get((package["name"], package["version"]))
        if checksum:
            made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["repository"]:
            made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return made

    by_purl = sorted(reached - {root}, key=lambda id: purl(packages[id]))
    main_component = component(root) | {"type": "application"}
    main_component.pop("scope")
    components = [component(id) for id in by_purl]
    dependencies = [{"ref": purl(packages[id]), "dependsOn": sorted(purl(packages[d]) for d in used(nodes[id]))}
                    for id in [root, *by_purl]]
    epoch = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    body = {"components": components, "dependencies": dependencies}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"timestamp": epoch.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main_component},
        **body,
    }
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    print()


main()
