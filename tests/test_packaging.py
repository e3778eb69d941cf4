"""What `pip install` makes of the tree: a wheel whose one top-level package is `ficgan`; an editable install alike."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ("ficgan", "ops", "configs", "pretrained", "setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
EMBEDDED = (".onnx", ".safetensors", ".json")
ABOUT = """
import json, pathlib
import ficgan, ficgan.configs, ficgan.ops, ficgan.pretrained
EMBEDDED = (".onnx", ".safetensors", ".json")
print(json.dumps({
    "version": ficgan.__version__,
    "package": str(pathlib.Path(ficgan.__file__).parent),
    "ops": str(pathlib.Path(ficgan.ops.__file__).parent),
    "configs": ficgan.configs.names(),
    "lengths": [len(ficgan.configs.read(name)) for name in ficgan.configs.names()],
    "pretrained": sorted(path.name for path in ficgan.pretrained.FOLDER.iterdir() if path.suffix in EMBEDDED),
    "typed": (pathlib.Path(ficgan.__file__).parent / "py.typed").is_file(),
}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command in a clean environment: no PYTHONPATH, no current directory that holds the tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is under version control or could be, so that the build leaves nothing in the real tree."""
    copy = tmp_path_factory.mktemp("tree")
    for name in INSTALLED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "build"))
        else:
            shutil.copy(source, copy / name)
    return copy


@pytest.fixture
def clean_venv(tmp_path: Path) -> Iterator[Path]:
    """A new virtual environment that sees the libraries of this one, but not its ficgan."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # One link per library: a .pth line would bring this environment's own editable ficgan along.
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "ficgan" not in entry.name and entry.suffix != ".pth" and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    yield folder


def install(clean: Path, *what: str | Path) -> None:
    """pip install into the clean environment, without network and without dependencies."""
    pip = [clean / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, "--no-index", "--no-deps", "--no-build-isolation", *what, cwd=clean)


def about(clean: Path, cwd: Path) -> dict[str, object]:
    """What the installed package says of itself, asked in an empty working directory."""
    cwd.mkdir()
    assert run(clean / "bin" / "ficgan", "--version", cwd=cwd) == "ficgan, version 0.1.0\n"
    assert "doctor" in run(clean / "bin" / "ficgan", "--help", cwd=cwd)
    return json.loads(run(clean / "bin" / "python", "-c", ABOUT, cwd=cwd))


def check(found: dict[str, object]) -> None:
    """Everything of the tree is found from the installed package."""
    assert found["version"] == "0.1.0"
    assert found["typed"] is True
    assert found["configs"] == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    assert all(found["lengths"])  # type: ignore[call-overload]
    embedded = (path.name for path in (ROOT / "pretrained").iterdir() if path.suffix in EMBEDDED)
    assert found["pretrained"] == sorted(embedded)


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    run(*pip, "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, tree, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_holds_every_source_and_data_file(wheel: Path) -> None:
    assert wheel.stat().st_size <= 45e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"ficgan", "ficgan-0.1.0.dist-info"}
    assert any(name.endswith("licenses/NOTICE") for name in names)
    sources = {f"ficgan/{path.relative_to(ROOT / 'ficgan')}" for path in (ROOT / "ficgan").rglob("*.py")}
    for folder in ("ops", "configs", "pretrained"):
        sources |= {f"ficgan/{folder}/{path.relative_to(ROOT / folder)}" for path in (ROOT / folder).rglob("*.py")}
    sources |= {f"ficgan/ops/csrc/{path.name}" for path in (ROOT / "ops" / "csrc").iterdir()}
    sources |= {f"ficgan/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    sources |= {f"ficgan/pretrained/{path.name}" for path in (ROOT / "pretrained").iterdir() if path.suffix in EMBEDDED}
    sources |= {f"ficgan/lab/papers/{name}.yaml" for name in ("fantomas", "ficgan", "revelio")}
    sources |= {"ficgan/py.typed"}
    assert sources <= set(names), f"not in the wheel: {sorted(sources - set(names))}"


@pytest.mark.slow
def test_the_wheel_installs(wheel: Path, clean_venv: Path, tmp_path: Path) -> None:
    install(clean_venv, wheel)
    found = about(clean_venv, tmp_path / "empty")
    check(found)
    for folder in ("package", "ops"):
        assert Path(str(found[folder])).is_relative_to(clean_venv)


@pytest.mark.slow
def test_editable(tree: Path, clean_venv: Path, tmp_path: Path) -> None:
    install(clean_venv, "--editable", tree)
    found = about(clean_venv, tmp_path / "empty")
    check(found)
    assert found["package"] == str(tree / "ficgan")
    assert found["ops"] == str(tree / "ops")
    (tree / "configs" / "another.yaml").write_text("seed: 1\n")
    try:
        code = "import ficgan.configs; print(ficgan.configs.read('another'))"
        assert run(clean_venv / "bin" / "python", "-c", code, cwd=tmp_path / "empty").startswith("seed: 1")
    finally:
        (tree / "configs" / "another.yaml").unlink()


def test_every_requirement_is_pinned_at_a_version_that_satisfies_it() -> None:
    """constraints.txt names one version of everything pyproject.toml asks for, and that version is good enough."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    extras = project["optional-dependencies"]
    names = ("train", "eval", "pointcloud", "serve", "bulk", "docs", "notebook", "dev")
    wanted = project["dependencies"] + [each for name in names for each in extras[name]]
    for requirement in wanted:
        if requirement.startswith("ficgan["):
            continue  # an extra that brings others
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:>=([0-9.]+))?", requirement)
        assert match, requirement
        name, least = match[1].lower().replace("_", "-"), match[2] or "0"
        assert name in pins, f"{name} is not pinned"
        assert numbers(pins[name]) >= numbers(least), f"{name}: {pins[name]} < {least}"


def numbers(version: str) -> list[int]:
    """The leading numbers of a version."""
    return [int(part) for part in re.findall(r"\d+", version.split(".post")[0])]


def test_the_commands_of_readme_and_docs_can_be_given_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command line there has known options with values of the right kind."""
    from ficgan.cli import main as group

    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)  # files need not be there

    # contributing.md has a test of its own
    text = "\n".join(page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("[!c]*.md"))))
    blocks = [block.replace("\\\n", " ") for block in text.split("```")[1::2]]
    lines = [re.split(r"\s#|\s>|; ", line)[0] for block in blocks for line in block.splitlines()]
    lines = [re.sub(r"^([A-Z_]+=\S+ )+|^.*\| (?=ficgan)", "", line) for line in lines]  # variables, what is piped in
    given = [shlex.split(line) for line in lines if line.startswith(("ficgan ", "ficgan-"))]
    assert {words[0] + " " + words[1] for words in given} >= {"ficgan train-verifier", "ficgan bank", "ficgan measure"}
    for words in given:
        alone = words[0].partition("-")[2]  # ficgan-deid, ficgan-eval
        command, rest = group.load(alone) if alone else group.main, words[1:]
        while isinstance(command, click.Group):
            _, found, rest = command.resolve_command(click.Context(command), rest)
            assert found is not None, words
            command = found
        command.make_context(words[0], rest)


def test_the_tree_of_the_architecture_names_every_file_and_no_other() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    files = {path.name for folder in ("ficgan", "ops") for path in (ROOT / folder).rglob("*.py")} - {
        "__init__.py",
        "__main__.py",
    }
    words = set(re.findall(r"\w+", tree))
    assert [name for name in sorted(files) if name.removesuffix(".py") not in words] == []
    assert set(re.findall(r"\w+\.py", tree)) - files - {"__init__.py"} == set()
