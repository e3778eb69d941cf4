"""What was done to real files, from the side-cars of `ficgan-deid`: for whoever answers for data protection."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ficgan.errors import InputError
from ficgan.lab.metrics.intervals import rule_of_three

__all__ = ["Account", "read_account"]

TOOLS = ("ficgan-deid", "ficgan-render")
SMALL = 20
"""Shorter side of a face's box, pixels, below which detectors miss many: the measured limit of recall .93."""


@dataclass
class Account:
    """Side-cars added up.

    Attributes:
        files: one row per file: name, hashes of input and output, version, mode, faces, detector, gate.
        faces: by what was done to them.
        exemptions: rule, reason, file, faces kept.
        edits: what a person changed by hand, a sentence each.
        small: faces whose box is below `SMALL` pixels.
        gate_read, gate_matched: faces the gate read again, and those it still took for the source or found uncovered.
            The gate decides about retries: its own figures are no result.
        checked, found: faces that a second look by another detector read (films), and what it found.
        bound: upper 95 % bound of the share still uncovered or recognised, where the second look found nothing.
        settings: different settings, each with the number of files.
        notes: what the tool said of single files.
        unreadable: side-cars that could not be read.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    faces: Counter[str] = field(default_factory=Counter)
    exemptions: list[dict[str, Any]] = field(default_factory=list)
    edits: list[str] = field(default_factory=list)
    small: int = 0
    gate_read: int = 0
    gate_matched: int = 0
    checked: int = 0
    found: int = 0
    bound: float | None = None
    settings: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_account(folder: Path) -> Account:
    """Add up all side-cars below a folder.

    Args:
        folder: where results of `ficgan-deid` lie.

    Raises:
        InputError: there is no side-car.
    """
    account = Account()
    for path in sorted(folder.rglob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            account.unreadable.append(path.name)
            continue
        if isinstance(record, dict) and record.get("tool") in TOOLS and "sha256" in record:
            _add(account, record)
    if not account.files:
        raise InputError(f"{folder} holds no side-car of ficgan-deid; name the folder its results were written to")
    if account.checked and not account.found:
        account.bound = rule_of_three(account.checked)
    return account


def _add(account: Account, record: dict[str, Any]) -> None:
    name = record.get("output", "?")
    film = "frames" in record
    told = record.get("faces")
    faces: list[dict[str, Any]] = told if isinstance(told, list) else []
    account.files.append(
        {
            "file": name, "input sha256": record.get("input_sha256", ""), "output sha256": record["sha256"],
            "ficgan": record.get("ficgan", ""), "mode": record.get("mode", ""),
            "faces": len(faces) if not film else sum(record.get("faces_by_action", {}).values()),
            "detector": record.get("detector", ""), "gate": record.get("gate") or "none",
        }
    )  # fmt: skip
    for face in faces:
        account.faces[face["action"]] += 1
        x0, y0, x1, y1 = face["box"]
        account.small += min(x1 - x0, y1 - y0) < SMALL
        if face.get("matched") is not None:
            account.gate_read += 1
            account.gate_matched += bool(face["matched"]) or not face.get("covered", True)
    account.faces.update(record.get("faces_by_action", {}))
    account.small += record.get("fallbacks", {}).get("small", 0)
    account.exemptions += [{"file": name, **exemption} for exemption in record.get("exemptions", ())]
    account.edits += [f"{name}: {edit}" for edit in record.get("edits", ())]
    check = record.get("check")
    if isinstance(check, dict):
        account.checked += int(check.get("faces", 0))
        account.found += len(check.get("findings", ()))
    said = ("mode", "methods", "background", "k", "psi", "alpha", "layers", "attributes", "directions")
    chosen = {key: record.get(key) for key in said}
    account.settings[json.dumps({key: value for key, value in chosen.items() if value}, sort_keys=True)] += 1
    account.notes += [f"{name}: {note}" for note in record.get("notes", ())]
