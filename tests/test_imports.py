"""Imports go one way between the rooms, nothing is unpickled, and `import ficgan` loads none of the heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import ficgan

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for folder in ("ficgan", "ops", "configs", "pretrained") for path in (ROOT / folder).rglob("*.py")
)
MAPPED = ("ops", "configs", "pretrained")

# Room → the rooms it may import; itself always, `cli` whatever it likes, nobody `cli`.
LEAVES = frozenset({"errors", "config", "device", "arrays", "registry", "files", "folders", "workers"})
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "files": frozenset({"errors"}),
    "folders": frozenset({"errors", "files", "config"}),
    "workers": frozenset({"errors"}),
    "device": frozenset({"errors", "pretrained"}),
    "registry": frozenset({"errors"}),
    "arrays": frozenset({"errors", "files"}),
    "configs": frozenset(),
    "pretrained": frozenset(),
    "losses": frozenset(),
    "ops": frozenset({"errors"}),
    "config": frozenset({"errors", "configs"}),
    "models": LEAVES | {"ops"},
    "faces": LEAVES,
    "images": LEAVES,
    "identity": LEAVES | {"models", "ops", "pretrained"},
    "policy": LEAVES | {"faces", "images", "identity"},
    "frame": LEAVES | {"faces", "data", "identity", "images"},
    "face_model": LEAVES | {"models", "faces", "identity", "policy"},
    "frame_model": LEAVES | {"frame", "face_model", "faces", "identity", "images", "policy"},
    "anonymizers": LEAVES | {"faces", "options", "verification"},
    "attacks": LEAVES | {"anonymizers", "faces", "verification", "models", "training", "ops"},
    "video": LEAVES | {"anonymizers", "models", "faces", "identity", "images", "options", "policy", "face_model"},
    "options": frozenset({"errors", "device", "anonymizers", "faces", "policy"}),
    "deidentify": LEAVES
    | {"anonymizers", "models", "faces", "identity", "images", "policy", "face_model", "frame_model", "frame", "video"}
    | {"options", "pretrained"},
    "ui": LEAVES | {"deidentify", "options", "faces", "images", "video", "anonymizers", "records"},
    "verification": LEAVES | {"ops", "models", "losses", "faces", "data"},
    "data": LEAVES | {"faces", "images"},
    "training": LEAVES
    | {"ops", "models", "losses", "faces", "data", "images", "verification", "identity", "frame"}
    | {"pretrained", "frame_model", "policy"},
    "lab": LEAVES
    | {"anonymizers", "attacks", "models", "faces", "identity", "images", "policy", "deidentify", "data", "pretrained"}
    | {"configs", "verification", "pointcloud", "face_model", "frame_model", "frame", "records", "training"},
    "pointcloud": LEAVES | {"anonymizers", "frame", "images", "pretrained"},
    "service": LEAVES | {"deidentify", "records", "policy"},
    "records": LEAVES | {"deidentify", "images", "policy", "video"},
    "diagnosis": LEAVES | {"ops", "models", "faces", "pretrained"},
}
TORCH_ONLY = ("losses",)
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}

NETWORKS = {
    "socket",
    "ssl",
    "http",
    "asyncio",
    "ftplib",
    "smtplib",
    "imaplib",
    "poplib",
    "socketserver",
    "xmlrpc",
    "requests",
    "httpx",
    "aiohttp",
    "urllib3",
    "websockets",
    "starlette",
    "uvicorn",
    "webbrowser",
    "huggingface_hub",
    "gdown",
}
LISTENERS = {"ficgan.cli.serve", "ficgan.service", "ficgan.ui.server"}
FETCHERS = {
    "load_state_dict_from_url",
    "load_url",
    "download_url",
    "download_url_to_file",
    "hf_hub_download",
    "urlretrieve",
    "urlopen",
    "create_connection",
}


def room_of(path: Path) -> str:
    """The room of a source file: `ops`, `configs`, `pretrained`, or what stands below `ficgan/`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] in MAPPED else _room(parts[1:])


def _room(parts: Sequence[str]) -> str:
    """The room of what stands below `ficgan`; the attackers are a room of their own in the lab."""
    return "attacks" if tuple(parts[:2]) == ("lab", "attacks") else parts[0]


def module_of(path: Path) -> str:
    """The dotted name under which a source file is imported (of a package: its `__init__`)."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("ficgan", *parts) if parts[0] in MAPPED else parts)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


@cache
def imported(source: str, module: str) -> tuple[tuple[int, str], ...]:
    """Every import of a source text, wherever it stands: line and absolute dotted name."""
    return tuple(_imported(source, module))


def _imported(source: str, module: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module.split(".")[: -node.level]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def target_room(name: str) -> str | None:
    """The room behind an absolute dotted name; None for what is not ours or has no room (`ficgan.__version__`)."""
    parts = name.split(".")
    if parts[0] != "ficgan" or len(parts) == 1:
        return None
    if parts[1] in ficgan._ROOMS:  # `from ficgan import Deidentifier` reaches the room behind the public name
        return _room([ficgan._ROOMS[parts[1]]])
    return None if parts[1].startswith("__") else _room(parts[1:])


def violations(source: str, module: str, room: str) -> list[str]:
    """What a source text of a room imports against the rules."""
    if room not in ALLOWED and room not in ("cli", "__init__"):
        return [f"{module}: the room {room!r} has no rule in tests/test_imports.py: add one"]
    found = []
    for line, name in imported(source, module):
        target = target_room(name)
        if target == room or (room in ("cli", "__init__") and target != "cli"):
            continue
        if target is None:
            root = name.split(".")[0]
            if room in TORCH_ONLY and root not in ("torch", *sys.stdlib_module_names):
                found.append(f"{module}:{line} imports {name}: {room} may import torch only")
        elif target not in ALLOWED.get(room, frozenset()):
            found.append(f"{module}:{line} imports {name}: {room} may not import {target}")
    return found


def unpicklings(source: str, module: str) -> list[str]:
    """Where a source text could load a pickle."""
    found = [
        f"{module}:{line} imports {name}" for line, name in imported(source, module) if name.split(".")[0] in UNPICKLERS
    ]
    found += [f"{module}:{line} imports {name}" for line, name in imported(source, module) if name == "torch.load"]
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node).startswith("torch."):
            found.append(f"{module}:{node.lineno} uses {ast.unparse(node)}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{module}:{node.value.lineno} allows pickles")
    return found


def reaching(source: str, module: str) -> list[str]:
    """Where a source text imports a module of networks, or calls a function that fetches a file."""
    names = [name.partition(".")[0] if not name.startswith("urllib") else name for _, name in imported(source, module)]
    found = [name for name in names if name in NETWORKS or name.startswith(("urllib.request", "urllib.error"))]
    calls = (node.func for node in nodes(source) if isinstance(node, ast.Call))
    return found + [ast.unparse(call) for call in calls if getattr(call, "attr", getattr(call, "id", "")) in FETCHERS]


def test_imports_go_one_way() -> None:
    found = [line for path in SOURCES for line in violations(path.read_text("utf-8"), module_of(path), room_of(path))]
    assert found == []


def test_no_pickle_is_ever_loaded() -> None:
    assert [line for path in SOURCES for line in unpicklings(path.read_text("utf-8"), module_of(path))] == []


def test_only_what_listens_knows_a_socket() -> None:
    """No other source imports what could reach a network, and none calls what fetches a file."""
    found = {(module_of(path), line) for path in SOURCES for line in reaching(path.read_text("utf-8"), module_of(path))}
    assert {module for module, _ in found} == LISTENERS, found


def test_the_library_prints_nothing() -> None:
    quiet = [path for path in SOURCES if "cli" not in path.parts and path.name != "__main__.py"]
    calls = [(path, node) for path in quiet for node in nodes(path.read_text("utf-8")) if isinstance(node, ast.Call)]
    assert [str(path) for path, call in calls if getattr(call.func, "id", "") == "print"] == []


def test_every_room_is_looked_at() -> None:
    assert {"errors", "ops", "configs", "pretrained", "cli", "__init__"} <= {room_of(path) for path in SOURCES}


def test_the_checkers_catch_and_let_pass() -> None:
    for module, source, count in (
        ("ficgan.ops.resample", "def late():\n    from ..models import FICGAN", 1),
        ("ficgan.models.encoder", "from ficgan import Deidentifier", 1),
        ("ficgan.deidentify", "import importlib\nimportlib.import_module('ficgan.training')", 1),
        ("ficgan.losses", "import numpy", 1),
        ("ficgan.__init__", "from ficgan.cli.main import main", 1),
        ("ficgan.attic.thing", "", 1),
        ("ficgan.models.encoder", "from ficgan.ops import bias_act\nfrom .layers import Conv\nfrom . import io", 0),
        ("ficgan.cli.deid", "from ficgan.deidentify import Deidentifier", 0),
    ):
        assert len(violations(source, module, module.split(".")[1])) == count, source
    for source in (
        "import pickle",
        "import torch\ntorch.load('x')",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
    ):
        assert unpicklings(source, "ficgan.models")
    for source in ("from urllib import request", "import torch\ntorch.hub.load_state_dict_from_url('x')"):
        assert reaching(source, "ficgan.x")
    assert not reaching("from urllib.parse import urlsplit", "ficgan.x")


# --- names and cycles -------------------------------------------------------------------------------------------------


def test_no_class_name_exists_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in nodes(path.read_text("utf-8")):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(module_of(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_import_cycles_between_files() -> None:
    """Imports inside functions count, too: what needs each other is one subject."""
    modules = {module_of(path).removesuffix(".__init__"): path for path in SOURCES}
    del modules["ficgan"]  # loads its public names when they are used
    arrows: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = arrows[name] = set()
        for _, target in imported(path.read_text("utf-8"), module_of(path)):
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target and target != name:
                found.add(target)
    for start in modules:
        reached, waiting = set[str](), [start]
        while waiting:
            for target in arrows[waiting.pop()]:
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        assert start not in reached, f"{start} imports itself through others"


def test_import_ficgan_loads_nothing_heavy() -> None:
    heavy = ["torch", "cv2", "onnxruntime", "dlib", "numpy", "PIL", "pydantic", "click", "yaml"]
    code = f"import sys, ficgan, ficgan.errors; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_public_name_is_listed_and_offered_by_its_room() -> None:
    assert set(ficgan._ROOMS) | {"__version__"} == set(ficgan.__all__) <= set(dir(ficgan))
    assert all(getattr(ficgan, name) is not None for name in ficgan._ROOMS)
    with pytest.raises(AttributeError, match="Deidentifer"):
        ficgan.Deidentifer  # noqa: B018
