"""Write the bill of materials (SBOM) of ficgan as CycloneDX 1.6 JSON, from requirements-all.txt, pyproject.toml, NOTICE
and the manifest of the embedded networks.

    python tools/make_sbom.py -o sbom.json                      everything that any extra installs
    python tools/make_sbom.py --light -o sbom.json              what replacing faces needs
    python tools/make_sbom.py --container cpu -o sbom.json      what docker/cpu.Dockerfile puts into the image

Of a container it names the base image and the packages of the distribution that the Dockerfile installs, but not what
the base image holds: see `docker sbom` or syft for that. The same files give the same bytes, apart from the licences,
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
MODEL_LICENCES = dict.fromkeys(("model", "bank", "kind"), "CC-BY-4.0")
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


def image(container: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The extras that a Dockerfile installs, and what it brings that is no package of Python."""
    path = ROOT / "docker" / f"{container}.Dockerfile"
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    base = re.findall(r"^FROM (\S+)", text, re.M)[-1]
    name, _, tag = base.partition(":")
    words = " ".join(re.findall(r"apt-get install ([^&]+)", text)).split()
    about = "package of the base image's distribution, at the version of its release"
    parts = [{"type": "container", "bom-ref": base, "name": name, "version": tag}]
    parts[0]["description"] = "base image; what it holds is not listed here"
    parts += [
        {"type": "library", "bom-ref": f"{base}/{word}", "name": word, "description": about}
        for word in words
        if not word.startswith("-")
    ]
    return re.findall(r"tools/lock\.py ([^>]+)>", text)[0].split(), parts


def bill(*, light: bool = False, container: str | None = None) -> dict[str, Any]:
    """The whole document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = re.search(r'__version__ = "([^"]+)"', (ROOT / "ficgan" / "__init__.py").read_text(encoding="utf-8"))
    pins = read()
    extras, parts = ([], []) if container is None else image(container)
    wanted = direct(extras)
    graph = needed(set(pins) if container is None and not light else wanted, pins)
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
    components = [component(name, pins[name].version) for name in sorted(graph)] + networks() + parts
    if container is not None:
        components.append(about)
        whole = f"ficgan-{container}"
        about = {"type": "container", "bom-ref": whole, "name": whole, "version": version}
        dependencies.append({"ref": whole, "dependsOn": [reference, *(part["bom-ref"] for part in parts)]})
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
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--light", action="store_true", help="only what replacing faces needs")
    what.add_argument("--container", choices=["cpu", "cuda"], help="what this Dockerfile puts into the image")
    given = parser.parse_args()
    document = bill(light=given.light, container=given.container)
    if not given.output.parent.is_dir():
        parser.error(f"{given.output.parent} is no folder; make it first")
    given.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{given.output}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
