"""The group of commands: lazily loaded, the same help everywhere, a missing library told in one sentence."""

from __future__ import annotations

import sys

import click
import pytest
from click.testing import CliRunner

from ficgan import __version__
from ficgan.cli import main as group
from ficgan.diagnosis import OPENCV_REMEDY


def test_version_and_help() -> None:
    runner = CliRunner()
    assert runner.invoke(group.main, ["--version"]).output.strip() == f"ficgan, version {__version__}"
    listing = runner.invoke(group.main, ["--help"])
    assert listing.exit_code == 0
    for name, entry in group.COMMANDS.items():
        assert name in listing.output and entry.help in listing.output


@pytest.mark.parametrize("name", [*sorted(group.COMMANDS), "bank build", "bank show"])
def test_h_is_help(name: str) -> None:
    result = CliRunner().invoke(group.main, [*name.split(), "-h"])
    assert result.exit_code == 0 and "Usage: " in result.output
    alone = CliRunner().invoke(group.load(name.split()[0]), [*name.split()[1:], "-h"])
    assert alone.exit_code == 0


def test_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(group.main, ["dide"])
    assert result.exit_code == 2
    assert "No such command 'dide'" in result.stderr


@pytest.mark.parametrize("name", sorted(group.COMMANDS))
def test_each_command_is_where_the_group_says_and_says_the_same(name: str) -> None:
    command = group.load(name)
    assert isinstance(command, click.Command)
    assert command.name == name
    result = CliRunner().invoke(group.main, [name, "--help"])
    assert result.exit_code == 0
    assert f"ficgan {name}" in result.output or f"main {name}" in result.output


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ImportError("libGL.so.1: cannot open shared object file: No such file or directory"), OPENCV_REMEDY),
        (ModuleNotFoundError("No module named 'torch'"), "ficgan doctor"),
    ],
)
def test_a_missing_library_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, advice: str
) -> None:
    def fail(name: str) -> object:
        raise error

    monkeypatch.setattr(group, "import_module", fail)
    result = CliRunner().invoke(group.main, ["deid", "photo.jpg"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1 and advice in result.stderr and "ficgan deid" in result.stderr


@pytest.mark.parametrize(("entry", "name"), [(group.deid_main, "ficgan-deid"), (group.train_main, "ficgan-train")])
def test_console_scripts(
    entry: object, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{name}", "--help"])
    with pytest.raises(SystemExit) as end:
        entry()  # type: ignore[operator]
    assert end.value.code == 0
    assert f"Usage: {name} " in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{name}", "-h"])
    with pytest.raises(SystemExit) as end:
        entry()  # type: ignore[operator]
    assert end.value.code == 0
