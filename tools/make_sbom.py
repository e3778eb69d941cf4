"""Write the bill of materials (SBOM) of ficgan as CycloneDX 1.6 JSON, from requirements-all.txt, pyproject.toml, NOTICE
and the manifest of the embedded networks.

    python tools/make_sbom.py -o sbom.json                      everything that any extra installs
    python tools/make_sbom.py --light -o sbom.json              what replacing faces needs

The same files give the same bytes, apart from the licences,
which installed packages state: there is no time stamp and no random number in it.
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

from lock import direct, needed, read

ROOT = Path(__file__).resolve().parents[1]
# Of the embedded networks, as NOTICE states them.
MODEL_LICENCES = dict.fromkeys(("model", "linear", "lenders", "bank", "kind", "glasses", "beards"), "CC-BY-4.0")
MODEL_LICENCES |= {"mesh": "Apache-2.0", "gate": "CC0-1.0", "detector": "MIT", "check": "Apache-2.0"}


def component(name: str, version: str) -> dict[str, Any]:
    """A package; its licence where it is installed and says so."""
    reference = f"pkg:pypi/{name}@{version}"
    entry: dict[str, Any] = {"type": "library", "bom-ref": reference, "name": name, "version": version}
    entry["purl"] = reference
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
            "type": "machine-learning-model",
            "bom-ref": f"ficgan/pretrained/{name}",
            "name": f"ficgan/pretrained/{name}",
            "description": f"embedded {entry['role']}",
            "hashes": [{"alg": "SHA-256", "content": entry["sha256"]}],
            "licenses": [{"license": {"id": MODEL_LICENCES[entry["role"]]}}],
        }
        for name, entry in sorted(files.items())
    ]


def bill(*, light: bool = False) -> dict[str, Any]:
    """The whole document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = re.search(r'__version__ = "([^"]+)"', (ROOT / "ficgan" / "__init__.py").read_text(encoding="utf-8"))
    pins = read()
    wanted = direct([])
    graph = needed(wanted if light else set(pins), pins)
    references = {name: f"pkg:pypi/{name}@{pins[name].version}" for name in graph}
    version = own[1] if own else "0"
    reference = f"pkg:pypi/ficgan@{version}"
    notice = hashlib.sha256((ROOT / "NOTICE").read_bytes()).hexdigest()
    about: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": "ficgan",
        "version": version,
        "purl": reference,
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "properties": [{"name": "ficgan:notice-sha256", "value": notice}],
    }
    models = [part["bom-ref"] for part in networks()]
    dependencies = [
        {"ref": reference, "dependsOn": sorted(references[name] for name in wanted) + models},
        *(
            {"ref": references[name], "dependsOn": [references[other] for other in others]}
            for name, others in sorted(graph.items())
        ),
    ]
    components = [component(name, pins[name].version) for name in sorted(graph)] + networks()
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": components,
        "dependencies": dependencies,
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    return {**document, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a bill of materials as CycloneDX JSON.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--light", action="store_true", help="only what replacing faces needs")
    given = parser.parse_args()
    document = bill(light=given.light)
    if not given.output.parent.is_dir():
        parser.error(f"{given.output.parent} is no folder; make it first")
    given.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{given.output}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
