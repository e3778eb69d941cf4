"""What an interrupted film leaves in its private work folder, so that the same job goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from ficgan import __version__
from ficgan.errors import InputError
from ficgan.files import atomic_write
from ficgan.video.decided import FilmFinding
from ficgan.video.folders import read_json
from ficgan.video.media import EncodeOptions
from ficgan.video.project import PROJECT_FILE, TRACKS_FILE, fingerprint
from ficgan.video.render import Renderer
from ficgan.video.settings import Rules, VideoSettings
from ficgan.video.tools import PathLike, VideoTools
from ficgan.video.write import finished_segments

__all__ = ["JobState", "analysis_in", "identity_of"]

DETECTIONS = "ficgan-detections.jsonl"
_STATE, _DRAWN = "ficgan-state.json", "ficgan-identities.safetensors"


def identity_of(
    tools: VideoTools,
    path: PathLike,
    settings: VideoSettings,
    rules: Rules,
    encode: EncodeOptions,
    start: float | None,
    end: float | None,
    document: bytes = b"",
) -> str:
    """Hash of everything that shapes the result: only the same job resumes what an interrupted one left.

    A seed counts where the user gave it; a random one is taken over from the interrupted job.
    """
    model = tools.face_model
    facts = {
        "ficgan": __version__,
        "film": [fingerprint(path), Path(path).stat().st_mtime_ns] if Path(path).is_file() else os.fspath(path),
        "seed": model.seed if model is not None and model.seeded else None,
        "methods": tools.methods.identity(),
        "settings": asdict(settings),
        "encode": asdict(encode),
        "span": [start, end],
        "keep": _photos(rules.keep),
        "only": _photos(rules.only),
        "boxes": list(rules.boxes),
        "spans": list(rules.spans),
        "detector": tools.detector.name,
        "gate": tools.gate.name if tools.gate else None,
        "policy": asdict(tools.policy),
        "layer": tools.layer,
        "psi": tools.psi,
        "model": model and model.identity(),
    }
    text = json.dumps(facts, sort_keys=True, default=str).encode()
    return hashlib.sha256(text + b"\0" + document).hexdigest()


def _photos(photos: Mapping[str, NDArray[np.uint8]]) -> list[list[Any]]:
    return [[name, photo.shape, hashlib.sha256(photo.tobytes()).hexdigest()] for name, photo in photos.items()]


def analysis_in(folder: Path) -> str | None:
    """The name of the analysis in a folder; None where there is none to be read."""
    try:
        return str(read_json(folder / PROJECT_FILE)["analysis"])
    except (InputError, KeyError, TypeError):
        return None


class _Facts(BaseModel):
    """ficgan-state.json."""

    identity: str
    """Hash of all that shapes the result."""
    seed: int | None = None
    """Of the model's draws; None without a model."""
    methods_seed: int
    analysed: bool = False
    replaced: int = 0
    """How often people who were still recognised got another face."""
    findings: list[FilmFinding] = []
    """What the check found before the film was rendered again, covered."""


class JobState:
    """The state of a film in its private work folder: the seed of the job and the new identities settled so far."""

    def __init__(self, folder: Path, tools: VideoTools, identity: str) -> None:
        self.folder, model = folder, tools.face_model
        self.timing: dict[str, float] = {}
        """Seconds by stage."""
        try:
            facts = _Facts.model_validate_json((folder / _STATE).read_bytes())
        except (OSError, ValueError):
            facts = None
        if facts is not None and facts.identity == identity:
            self.facts, tools.methods.seed = facts, facts.methods_seed
            if model is not None and facts.seed is not None:
                model.seed = facts.seed
            return
        for path in folder.iterdir():
            if path.name.startswith("ficgan-") or path.name in (PROJECT_FILE, TRACKS_FILE):
                path.unlink()
        seed = None if model is None else model.seed
        self.facts = _Facts(identity=identity, seed=seed, methods_seed=tools.methods.seed)
        self.note()

    @property
    def analysed(self) -> bool:
        return self.facts.analysed and (self.folder / PROJECT_FILE).is_file()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.timing[stage] = self.timing.get(stage, 0.0) + time.monotonic() - began

    def note(self, **facts: Any) -> None:
        self.facts = self.facts.model_copy(update=facts)
        with atomic_write(self.folder / _STATE, overwrite=True, mode=0o600) as file:
            file.write(self.facts.model_dump_json().encode())

    def save(self, renderer: Renderer, frames: int) -> None:
        """Save what the renderer knows when it has drawn the first `frames` frames, those of all finished segments."""
        from safetensors.numpy import save

        people: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for number, (person, one) in enumerate(renderer.identities.people.items()):
            tensors[f"z_id.{number}"] = one.z_id
            if one.kind is not None:
                tensors[f"kind.{number}"] = one.kind
            tracks = {"checked": list(one.checked.items()), "hidden": list(one.hidden), "watched": list(one.watched)}
            readings = {"distance": one.distance, "matched_by": one.matched_by, "settled": one.settled}
            people.append({"person": person, "attempt": one.attempt, **readings, **tracks})
        covers = renderer.covers
        tensors |= {f"still.{number}": still for number, still in enumerate(covers.stills.values())}
        facts = {
            "people": people,
            "stills": list(covers.stills),
            "colours": list(covers.colours.items()),
            "lost": list(renderer.identities.lost.items()),
            "counts": renderer.counts,
            "causes": renderer.causes,
            "frames": frames,
        }
        with atomic_write(self.folder / _DRAWN, overwrite=True, mode=0o600) as file:
            file.write(save(tensors, metadata={"facts": json.dumps(facts)}))

    def load(self, renderer: Renderer) -> None:
        """Restore what the renderer of the interrupted run knew; later segments are removed and rendered again."""
        from safetensors import SafetensorError, safe_open

        frames, identities, covers = 0, renderer.identities, renderer.covers
        try:
            with safe_open(str(self.folder / _DRAWN), framework="np") as file:
                facts = json.loads((file.metadata() or {})["facts"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for number, saved in enumerate(facts["people"]):
                person, kind = saved.pop("person"), tensors.get(f"kind.{number}")
                one = identities.identity(person, tensors[f"z_id.{number}"], saved.pop("attempt"), kind)
                tracks: dict[str, Any] = {name: set(saved.pop(name)) for name in ("hidden", "watched")}
                identities.people[person] = replace(one, checked=dict(saved.pop("checked")), **tracks, **saved)
            for number, (mode, person) in enumerate(facts["stills"]):
                covers.stills[mode, person] = tensors[f"still.{number}"]
            covers.colours = {track: (red, green, blue) for track, (red, green, blue) in facts["colours"]}
            identities.lost = dict(facts["lost"])
            renderer.counts.update(facts["counts"])
            renderer.causes.update(facts["causes"])
            frames = int(facts["frames"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            identities.people.clear()
            covers.stills.clear()
            covers.colours.clear()
            renderer.restart()
        for segment in finished_segments(self.folder):
            if segment.last >= frames:
                segment.path.unlink()
