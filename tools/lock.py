"""The hashes of every package, and the part of them that some extras need.

    python tools/lock.py --update               resolve again: writes requirements-all.txt and requirements-light.txt
    python tools/lock.py serve > wanted.txt     what ficgan[serve] needs, with hashes
    pip install --require-hashes -r wanted.txt && pip install --no-deps .

The versions are those of constraints.txt. `--update` needs uv and its network; the rest needs Python alone.
A name that is no extra is a package: `python tools/lock.py serve setuptools`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALL, LIGHT = ROOT / "requirements-all.txt", ROOT / "requirements-light.txt"
COMMAND = "pip compile pyproject.toml --all-extras -c constraints.txt --universal --python-version 3.11.5"
HEADERS = {
    ALL: """\
# Everything that any extra needs, with the hashes of all its files on PyPI; the versions are those of constraints.txt.
# Too much for one environment: `python tools/lock.py serve > wanted.txt` chooses what ficgan[serve] needs.
""",
    LIGHT: """\
# The light set with the hashes of every wheel and archive on PyPI: pip refuses any other file.
#   pip install --require-hashes -r requirements-light.txt && pip install --no-deps ficgan
""",
}
MADE = "# Made by: python tools/lock.py --update\n"


@dataclass(frozen=True)
class Pin:
    """A package of the lock."""

    name: str
    version: str
    text: str
    """Its line and those of its hashes."""
    wanted_by: frozenset[str]
    """Packages that need it."""

    @property
    def hashes(self) -> list[str]:
        return re.findall(r"--hash=sha256:([0-9a-f]{64})\b", self.text)


def normal(name: str) -> str:
    """A package's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normal(re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0])


def read(path: Path = ALL) -> dict[str, Pin]:
    """Normal name → what the lock says of it."""
    pins = {}
    for block in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block):
            lines = block.rstrip().splitlines()
            text = "\n".join(line for line in lines if not line.lstrip().startswith("#")) + "\n"
            wanted = frozenset(normal(name) for name in re.findall(r"^\s+# (?:via|  )\s*([\w.-]+)$", block, re.M))
            pins[normal(match[1])] = Pin(normal(match[1]), match[2], text, wanted)
    return pins


def direct(names: Iterable[str], project: Path = ROOT / "pyproject.toml") -> set[str]:
    """What ficgan with these extras asks for itself; a name that is no extra stays."""
    facts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras, found = facts["optional-dependencies"], {name_of(line) for line in facts["dependencies"]}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for line in extras.get(name, [name]):
            if line.startswith("ficgan["):
                waiting += line[len("ficgan[") : line.index("]")].split(",")
            else:
                found.add(name_of(line))
    return found


def needed(names: Iterable[str], pins: dict[str, Pin]) -> dict[str, list[str]]:
    """Package → what it needs itself, of these packages and everything below them."""
    needs: dict[str, list[str]] = {name: [] for name in pins}
    for pin in pins.values():
        for user in pin.wanted_by & set(pins):
            needs[user].append(pin.name)
    graph: dict[str, list[str]] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in pins:
            raise SystemExit(f"{name} is no extra of pyproject.toml and no package of {ALL.name}")
        if name not in graph:
            graph[name] = sorted(needs[name])
            waiting += graph[name]
    return graph


def subset(names: Iterable[str]) -> str:
    """The lines of the lock that ficgan with these extras needs."""
    pins = read()
    return "".join(pins[name].text for name in sorted(needed(direct(names), pins)))


def update() -> None:
    """Resolve again, with the versions of constraints.txt."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "all.txt")
        options = ["--generate-hashes", "--no-emit-index-url", "--no-header", "--quiet", "-o", str(made)]
        subprocess.run([sys.executable, "-m", "uv", *COMMAND.split(), *options], cwd=ROOT, check=True)
        ALL.write_text(HEADERS[ALL] + MADE + made.read_text(encoding="utf-8"), encoding="utf-8")
    LIGHT.write_text(HEADERS[LIGHT] + MADE + subset(()), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", nargs="*", help="extras of ficgan, or packages")
    parser.add_argument("--update", action="store_true", help="resolve again, with uv")
    given = parser.parse_args()
    if given.update:
        update()
    else:
        sys.stdout.write(subset(given.extras))
    return 0


if __name__ == "__main__":
    sys.exit(main())
