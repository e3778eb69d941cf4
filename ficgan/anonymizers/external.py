"""Other people's anonymisers: a program that turns a folder of crops into another, or images it made before."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.registry import param

__all__ = ["External"]

_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


@ANONYMIZERS.add
@dataclass(frozen=True)
class External(Anonymizer):
    """Crops by a program that is not ours, all in one run, or by images that it made in a folder.

    With `command`, the crops are written as 000000.png, 000001.png, … into a folder of their own, the program is run
    without a shell, and it must write PNG files of the same names into the other folder. Both folders are private and
    gone afterwards, whatever happens; a program that runs out of time is ended with all it started.

    With `folder`, each face takes the image whose path below the folder, without suffix, is the face's name without
    suffix; else the only one in all the folder that has the name's last part.
    """

    name = "external"
    traits = Traits(title="external program", family="external", source="the program's own")
    command: str = param("", "the program and its arguments, {input} and {output} for the folders")
    folder: str = param("", "images made before, by the names of the faces")
    label: str = param("", "what tables call it")
    timeout: float = param(3600.0, "seconds a run may take", low=0.001)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.command and self.folder:
            raise UsageError("external: both a command and a folder are given; give one")
        if self.command:
            self._arguments({"input": "", "output": ""})
        if self.label:
            object.__setattr__(self, "traits", replace(self.traits, title=self.label))

    def __call__(self, faces: Faces) -> Images:
        """Anonymised crops [N,S,S,3] uint8 RGB.

        Raises:
            UsageError: neither command nor folder, or no such program or folder.
            FicganError: the program failed, or ran out of time.
            InputError: an image is missing, damaged, ambiguous, or of another size.
        """
        if not (self.command or self.folder):
            raise UsageError("external needs a program or its images; give command='X {input} {output}' or folder")
        if not len(faces):
            return faces.images.copy()
        return self._run(faces) if self.command else self._gather(faces)

    def _arguments(self, folders: Mapping[str, str]) -> list[str]:
        try:
            arguments = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"external: command {self.command!r} cannot be read ({error}); mend it") from error
        for key, folder in folders.items():
            mark = "{" + key + "}"
            if not any(mark in argument for argument in arguments[1:]):
                raise UsageError(f"external: the command has no {mark}; say where the program takes its {key} folder")
            arguments = [argument.replace(mark, folder) for argument in arguments]
        return arguments

    def _run(self, faces: Faces) -> Images:
        from PIL import Image

        with tempfile.TemporaryDirectory(prefix="ficgan-external-", ignore_cleanup_errors=True) as work:
            source, target = Path(work, "input"), Path(work, "output")
            source.mkdir()
            target.mkdir()
            files = [f"{index:06d}.png" for index in range(len(faces))]
            for image, file in zip(faces.images, files, strict=True):
                Image.fromarray(image).save(source / file, compress_level=1)
            self._wait_for(self._arguments({"input": str(source), "output": str(target)}), Path(work, "said"))
            missing = [name for name, file in zip(faces.names, files, strict=True) if not (target / file).is_file()]
            if missing:
                raise InputError(f"external: the program wrote no image of {_listed(missing)}; leave those out")
            return _read_all([target / file for file in files], faces)

    def _wait_for(self, arguments: list[str], said: Path) -> None:
        """Run to the end; what the program says goes to a file, so that it never waits for a reader."""
        with said.open("wb") as sink:
            try:
                process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=sink,
                    start_new_session=True,
                )
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise UsageError(f"external: {arguments[0]!r} cannot be run ({reason}); mend the path") from error
            try:
                status = process.wait(self.timeout)
            except BaseException as error:  # an interrupt too; not yet waited for, so its number is still its own
                _end(process)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise FicganError(
                    f"external: {arguments[0]!r} took more than {self.timeout:g} s and was ended; raise the timeout"
                ) from error
        if status:
            raise FicganError(f"external: {arguments[0]!r} failed with status {status}: {_last_line(said)}")

    def _gather(self, faces: Faces) -> Images:
        folder = Path(self.folder).expanduser()
        if not folder.is_dir():
            raise UsageError(f"external: there is no folder {folder}; give that of the images")
        exact: dict[str, list[Path]] = {}
        loose: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in _SUFFIXES and path.is_file():
                exact.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)
                loose.setdefault(path.stem, []).append(path)
        found: dict[Path, str] = {}
        missing: list[str] = []
        for name in faces.names:
            key = _without_suffix(name)
            candidates = exact.get(key) or loose.get(PurePosixPath(key).name, [])
            if not candidates:
                missing.append(name)
                continue
            if len(candidates) > 1:
                both = " and ".join(one.relative_to(folder).as_posix() for one in candidates[:2])
                raise InputError(f"external: both {both} in {folder} may be {name}; leave one of them")
            if candidates[0] in found:
                twice = f"{found[candidates[0]]} and {name}"
                raise InputError(f"external: {candidates[0]} would be both {twice}; put them into folders as named")
            found[candidates[0]] = name
        if missing:
            raise InputError(f"external: {folder} has no image of {_listed(missing)}; name each as its face")
        return _read_all(list(found), faces)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all it started."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)  # its own session, so its own group
    else:
        process.kill()
    process.wait()


def _last_line(file: Path) -> str:
    with file.open("rb") as source:
        source.seek(max(0, file.stat().st_size - 65536))
        lines = [line.strip() for line in source.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it gave no reason"


def _without_suffix(name: str) -> str:
    """ "a/b.png" → "a/b"; "S01.2" stays: only the suffix of an image is one."""
    path = PurePosixPath(name)
    return path.with_suffix("").as_posix() if path.suffix.lower() in _SUFFIXES else path.as_posix()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _read_all(files: Sequence[Path], faces: Faces) -> Images:
    out = np.empty_like(faces.images)
    for index, (file, name) in enumerate(zip(files, faces.names, strict=True)):
        out[index] = _read(file, name, faces.images.shape[1])
    return out


def _read(file: Path, name: str, side: int) -> Images:
    """The pixels [S,S,3] of an image of a given side; nothing is resized, and nothing but 8-bit colour guessed at."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            if image.size != (side, side):
                width, height = image.size
                raise InputError(
                    f"external: {file.name} for {name} is {width}×{height}, not {side}×{side}; give crops of one size"
                )
            opaque = image.mode in ("L", "RGB", "P") and "transparency" not in image.info
            if not opaque and not (image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255)):
                raise InputError(
                    f"external: {file.name} for {name} is an image of mode {image.mode}, and 8-bit RGB is needed"
                )
            return np.asarray(image.convert("RGB"))
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders have no common base
        raise InputError(f"external: {file.name} for {name} is no readable image; write it again") from error
