"""Write the bill of materials (SBOM) of ficgan as CycloneDX 1.6 JSON, from constraints.txt, pyproject.toml, NOTICE and
the manifest of the embedded networks.

    python tools/make_sbom.py -o sbom.json            everything that `make` installs
    python tools/make_sbom.py --light -o sbom.json    what replacing faces needs

The same files give the same bytes: there is no time stamp and no random number in it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL_LICENCES = {"model": "CC-BY-4.0", "bank": "CC-BY-4.0", "mesh": "Apache-2.0", "gate": "CC0-1.0", "detector": "MIT"}
"""Of the embedded networks, as NOTICE states them."""


def normal(name: str) -> str:
    """A package's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Normal name → version of the lines `name==version`."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.M)
    return {normal(name): version for name, version in found}


def needed(names: set[str], versions: dict[str, str]) -> dict[str, list[str]]:
    """Package → what it needs, from these on; as far as it is installed here, without extras."""
    graph: dict[str, list[str]] = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name in graph or name not in versions:
            continue
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            lines = []
        plain = [line for line in lines if "extra ==" not in line]
        wanted = {normal(re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0]) for line in plain}
        graph[name] = sorted(wanted & set(versions))
        waiting += graph[name]
    return graph


def component(name: str, version: str) -> dict[str, Any]:
    """A package; its licence where it is installed and says so."""
    reference = f"pkg:pypi/{name}@{version}"
    entry: dict[str, Any] = {
        "type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference
    }
    try:
        facts = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return entry
    if expression := facts.get("License-Expression"):
        entry["licenses"] = [{"expression": expression}]
    elif (licence := " ".join((facts.get("License") or "").split())) and len(licence) < 100:
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def networks() -> list[dict[str, Any]]:
    """The embedded networks with their digests."""
    files = json.loads((ROOT / "pretrained" / "manifest.json").read_text(encoding="utf-8"))["files"]
    return [
        {
            "type": "machine-learning-model", "bom-ref": f"ficgan/pretrained/{name}",
            "name": f"ficgan/pretrained/{name}",
            "description": f"embedded {entry['role']}",
            "hashes": [{"alg": "SHA-256", "content": entry["sha256"]}],
            "licenses": [{"license": {"id": MODEL_LICENCES[entry["role"]]}}],
        }
        for name, entry in sorted(files.items())
    ]  # fmt: skip


def bill(*, light: bool) -> dict[str, Any]:
    """The whole document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    own = re.search(r'__version__ = "([^"]+)"', (ROOT / "ficgan" / "__init__.py").read_text(encoding="utf-8"))
    direct = {normal(re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0]) for line in project["dependencies"]}
    missing = direct - set(versions)
    if missing:
        raise SystemExit(f"constraints.txt pins no {', '.join(sorted(missing))}")
    graph = needed(direct if light else set(versions), versions)
    reference = f"pkg:pypi/ficgan@{own[1] if own else '0'}"
    notice = hashlib.sha256((ROOT / "NOTICE").read_bytes()).hexdigest()
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": reference, "name": "ficgan", "version": own[1] if own else "0",
                "purl": reference, "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "properties": [{"name": "ficgan:notice-sha256", "value": notice}],
            },
        },
        "components": [component(name, versions[name]) for name in sorted(graph)] + networks(),
        "dependencies": [
            {
                "ref": reference,
                "dependsOn": [f"pkg:pypi/{name}@{versions[name]}" for name in sorted(direct)]
                + [one["bom-ref"] for one in networks()],
            },
            *(
                {
                    "ref": f"pkg:pypi/{name}@{versions[name]}",
                    "dependsOn": [f"pkg:pypi/{other}@{versions[other]}" for other in others],
                }
                for name, others in sorted(graph.items())
            ),
        ],
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    return {**document, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a bill of materials as CycloneDX JSON.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--light", action="store_true", help="only what replacing faces needs")
    given = parser.parse_args()
    document = bill(light=given.light)
    given.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{given.output}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
