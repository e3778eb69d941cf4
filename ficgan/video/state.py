"""What an interrupted film needs to resume where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.errors import FicganError, InputError
from ficgan.faces import Face, FaceDetector
from ficgan.video.folders import hold, make_private_folder, read_json, remove_folder, work_folder, write_private
from ficgan.video.media import EncodeOptions, Frame, reason
from ficgan.video.plan import Finding
from ficgan.video.project import PROJECT_FILE, fingerprint
from ficgan.video.render import Renderer, VideoTools
from ficgan.video.settings import Rules, VideoSettings
from ficgan.video.write import finished_segments

__all__ = ["DETECTIONS", "DetectionLog", "State", "analysis_in", "identity_of", "working"]

DETECTIONS = "ficgan-detections.jsonl"
_STATE = "ficgan-state.json"
_CASTS = "ficgan-casts.safetensors"


def identity_of(
    tools: VideoTools, path: str | os.PathLike[str], settings: VideoSettings, rules: Rules, encode: EncodeOptions,
    start: float | None, end: float | None, document: bytes = b"",
) -> str:  # fmt: skip
    """Hash of everything that shapes the result: only the same job resumes what an interrupted one left.

    A seed counts where the user gave it; a random one is taken over from the interrupted job.
    """
    model = tools.face_model
    facts = {
        "ficgan": __version__,
        "film": [fingerprint(path), Path(path).stat().st_mtime_ns] if Path(path).is_file() else os.fspath(path),
        "seed": model.seed if model is not None and model.seeded else None, "methods": tools.methods.identity(),
        "settings": asdict(settings), "encode": asdict(encode), "span": [start, end],
        "keep": _photos(rules.keep), "only": _photos(rules.only),
        "boxes": list(rules.boxes), "spans": list(rules.spans),
        "detector": tools.detector.name, "gate": tools.gate.name if tools.gate else None,
        "policy": asdict(tools.policy), "layer": tools.layer, "psi": tools.psi, "model": model and model.identity(),
    }  # fmt: skip
    text = json.dumps(facts, sort_keys=True, default=str).encode()
    return hashlib.sha256(text + b"\0" + document).hexdigest()


def _photos(photos: Mapping[str, NDArray[np.uint8]]) -> list[list[Any]]:
    return [[name, photo.shape, hashlib.sha256(photo.tobytes()).hexdigest()] for name, photo in photos.items()]


@contextmanager
def working(output: Path) -> Iterator[Path]:
    """The private folder of an unfinished film, locked while the block runs.

    It is removed when the film is done or fails. After an interrupt or a crash it stays, so that the same job resumes.
    """
    work = work_folder(output)
    make_private_folder(work, "work")
    with ExitStack() as held:
        held.enter_context(hold(work))
        try:
            yield work
        except BrokenPipeError:  # nobody reads the output any more: an interrupt
            raise
        except (FicganError, OSError) as error:
            held.close()
            remove_folder(work)
            if isinstance(error, OSError):
                raise InputError(f"{output}: cannot be written ({reason(error)})") from error
            raise
        held.close()
        remove_folder(work)


def analysis_in(folder: Path) -> str | None:
    """The name of the analysis in a folder; None where there is none to be read."""
    try:
        return str(read_json(folder / PROJECT_FILE)["analysis"])
    except (InputError, KeyError, TypeError):
        return None


class State:
    """The state of a film in its private work folder: the seed of the job and the new identities settled so far."""

    def __init__(self, folder: Path, tools: VideoTools, identity: str) -> None:
        self.folder, self._tools = folder, tools
        self.timing: dict[str, float] = {}
        self._tree: dict[str, Any] = {}
        try:
            tree = json.loads((folder / _STATE).read_bytes())
            if tree.get("identity") == identity:
                self._tree = tree
        except (OSError, ValueError, AttributeError):
            pass
        if not self._tree:
            for path in folder.iterdir():
                if path.name.startswith("ficgan-") or path.name in ("project.json", "tracks.jsonl"):
                    path.unlink()
            self._tree = {"identity": identity}
            if tools.face_model is not None:
                self._tree["seed"] = tools.face_model.seed
            self._tree["methods_seed"] = tools.methods.seed
            self.note()
        else:
            tools.methods.seed = self._tree["methods_seed"]
            if tools.face_model is not None:
                tools.face_model.seed = self._tree["seed"]

    @property
    def analysed(self) -> bool:
        return bool(self._tree.get("analysed")) and (self.folder / PROJECT_FILE).is_file()

    @property
    def recasts(self) -> int:
        return int(self._tree.get("recasts", 0))

    @property
    def findings(self) -> list[Finding]:
        """What the check found before the film was rendered again, see `Plan.cover`."""
        return [Finding(**finding) for finding in self._tree.get("findings", [])]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.timing[stage] = self.timing.get(stage, 0.0) + time.monotonic() - began

    def note(self, **facts: Any) -> None:
        self._tree |= facts
        with write_private(self.folder / _STATE, overwrite=True) as file:
            file.write(json.dumps(self._tree).encode())

    def save_casts(self, renderer: Renderer, counts: Counter[str], frames: int) -> None:
        """The new identities settled so far, and what was done in the first `frames` frames: all finished segments."""
        from safetensors.numpy import save

        casts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for number, (person, cast) in enumerate(renderer.casts.items()):
            tensors[f"z_id.{number}"] = cast.z_id
            casts.append({"person": person, "rung": cast.rung, "distance": cast.distance})
        stills = list(renderer.covers.stills)
        tensors |= {f"still.{number}": renderer.covers.stills[key] for number, key in enumerate(stills)}
        header = {
            "casts": json.dumps(casts), "stills": json.dumps(stills), "counts": json.dumps(counts),
            "frames": str(frames),
        }  # fmt: skip
        with write_private(self.folder / _CASTS, overwrite=True) as file:
            file.write(save(tensors, metadata=header))

    def load_casts(self, renderer: Renderer) -> None:
        """Restore the identities of the interrupted run; later segments are removed and rendered again."""
        from safetensors import SafetensorError, safe_open

        frames = 0
        try:
            with safe_open(str(self.folder / _CASTS), framework="np") as file:
                header = file.metadata() or {}
                for number, cast in enumerate(json.loads(header["casts"])):
                    renderer.cast(cast["person"], file.get_tensor(f"z_id.{number}"), cast["rung"], cast["distance"])
                for number, (mode, person) in enumerate(json.loads(header["stills"])):
                    renderer.covers.stills[mode, person] = file.get_tensor(f"still.{number}")
                renderer.counts = Counter(json.loads(header["counts"]))
                frames = int(header["frames"])
        except (OSError, SafetensorError, KeyError, ValueError):
            renderer.casts.clear()
            renderer.covers.stills.clear()
            renderer.counts.clear()
        for segment in finished_segments(self.folder):
            if segment.last >= frames:
                segment.path.unlink()


class DetectionLog:
    """Detects faces and logs them on disk, so that an interrupted analysis resumes.

    `path` has JSON lines; a line cut short is dropped. None: nothing is kept.
    """

    def __init__(self, detector: FaceDetector, path: Path | None) -> None:
        self._detector, self._file = detector, None
        self._found: dict[int, list[Face]] = {}
        if path is None:
            return
        good = 0
        if path.is_file():
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    number, rows = json.loads(line)
                    self._found[int(number)] = [_face(row) for row in rows]
                except (ValueError, TypeError, IndexError):
                    break
                if not line.endswith(b"\n"):
                    break
                good += len(line)
        path.touch(mode=0o600)
        self._file = path.open("r+", encoding="ascii")
        self._file.truncate(good)
        self._file.seek(good)

    def detect(self, frame: Frame) -> list[Face]:
        """The faces of a frame, from the log or found now."""
        if frame.index in self._found:
            return self._found.pop(frame.index)
        faces = self._detector.detect(frame.image)
        if self._file is None:
            return faces
        rows = [_row(face) for face in faces]
        self._file.write(json.dumps([frame.index, rows]) + "\n")
        self._file.flush()
        return [_face(row) for row in rows]  # as a later run reads them

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _row(face: Face) -> list[float]:
    values = [*face.box.ravel(), *face.landmarks.ravel()]
    return [*(round(float(value), 2) for value in values), round(float(face.score), 4)]


def _face(row: list[float]) -> Face:
    values = np.asarray(row, np.float32)
    if values.shape != (15,) or not np.isfinite(values).all():
        raise ValueError("no face")
    return Face(values[:4], values[4:14].reshape(5, 2), float(values[14]))
