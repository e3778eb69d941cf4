"""Programs of other people that turn a folder of images into another, and images that such a program made before."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits
from ficgan.arrays import resize
from ficgan.errors import FicganError, InputError, UsageError, reason
from ficgan.files import alone_in
from ficgan.registry import Parametrised, param

_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")

# Of the private folders in the temporary folder; a killed run leaves its own, and `ficgan purge` removes it by the file
# that marks it.
TEMPORARY_PREFIX, MARKER = "ficgan-external-", ".ficgan-folder"


@dataclass(frozen=True)
class Program(Parametrised):
    """Images made from face crops by a program in one run, or taken from a folder.

    With `command`, crops are written as 000000.png, … into a private folder, the program is run without a shell, and
    must write PNG files of the same names into another one. With `folder`, each face takes the image of its name.
    """

    command: str = param("", "the program and its arguments, {input} and {output} for the folders")
    folder: str = param("", "images made before, by the names of the faces")
    timeout: float = param(3600.0, "seconds a run may take", low=0.001)

    any_side = False  # whether its images may be squares of another side

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.command and self.folder:
            raise UsageError(f"{self.name}: both a command and a folder are given; give one")
        if self.command:
            self._arguments({"input": "", "output": ""})

    def made_of(self, faces: Faces) -> Images:
        """Images of the faces by the program, or from the folder: [N,S,S,3] uint8 RGB."""
        if not (self.command or self.folder):
            raise UsageError(f"{self.name} needs a program or its images; give command='X {{input}} …' or folder")
        out, side = np.empty_like(faces.images), faces.images.shape[1]
        if len(faces):
            with self._run(faces) if self.command else contextlib.nullcontext(self._gather(faces)) as files:
                for new, file, name in zip(out, files, faces.names, strict=True):
                    pixels = read_pixels(file, name)
                    height, width = pixels.shape[:2]
                    if height != width or not (self.any_side or width == side):
                        size = f"{width}×{height}, not {side}×{side}"
                        raise InputError(f"external: {file.name} for {name} is {size}; give crops of that size")
                    new[:] = resize(pixels, side)
        return out

    def _arguments(self, folders: Mapping[str, str]) -> list[str]:
        try:
            arguments = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"{self.name}: command {self.command!r} cannot be read ({error}); mend it") from error
        for key, folder in folders.items():
            mark = "{" + key + "}"
            if not any(mark in argument for argument in arguments[1:]):
                raise UsageError(f"{self.name}: the command has no {mark}, where the program takes its {key} folder")
            arguments = [argument.replace(mark, folder) for argument in arguments]
        return arguments

    @contextlib.contextmanager
    def _run(self, faces: Faces) -> Iterator[list[Path]]:
        from PIL import Image

        with (
            tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, ignore_cleanup_errors=True) as work,
            alone_in(Path(work)),  # `ficgan purge` leaves it alone
        ):
            Path(work, MARKER).write_bytes(b'{"schema": "ficgan-external/1", "remove": "ficgan purge"}\n')
            source, target = Path(work, "input"), Path(work, "output")
            source.mkdir()
            target.mkdir()
            files = [f"{index:06d}.png" for index in range(len(faces))]
            for image, file in zip(faces.images, files, strict=True):
                Image.fromarray(image).save(source / file, format="PNG", compress_level=1)
            self._wait_for(self._arguments({"input": str(source), "output": str(target)}), Path(work, "program.log"))
            made = [target / file for file in files]
            self._need(dict(zip(faces.names, made, strict=True)), "the program wrote")
            yield made

    def _wait_for(self, arguments: list[str], said: Path) -> None:
        with said.open("wb") as sink:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": sink}
            try:
                process = subprocess.Popen(arguments, **streams, start_new_session=True)
            except OSError as error:
                why = f"{arguments[0]!r} cannot be run ({reason(error)}); mend the path"
                raise UsageError(f"{self.name}: {why}") from error
            try:
                status = process.wait(self.timeout)
            except BaseException as error:  # an interrupt too; not yet waited for, so its number is still its own
                with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
                    os.killpg(process.pid, signal.SIGKILL)  # its own session, so its own group
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                took = f"{arguments[0]!r} took more than {self.timeout:g} s and was ended"
                raise FicganError(f"{self.name}: {took}; raise the timeout") from error
        if status:
            lines = said.read_bytes()[-65536:].decode("utf-8", "replace").strip().split("\n")
            why = lines[-1].strip()[:300] or "it gave no reason"
            raise FicganError(f"{self.name}: {arguments[0]!r} failed with status {status}: {why}")

    def _gather(self, faces: Faces) -> list[Path]:
        folder = Path(self.folder).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{self.name}: there is no folder {folder}; give that of the images")
        found: dict[str, Path] = {}
        for name in faces.names:
            stem = name.removesuffix(Path(name).suffix) if Path(name).suffix.lower() in _SUFFIXES else name
            candidates = (folder / (stem + suffix) for suffix in _SUFFIXES)
            found[name] = next((path for path in candidates if path.is_file()), folder / name)
        self._need(found, f"{folder} has")
        return list(found.values())

    def _need(self, files: Mapping[str, Path], begin: str) -> None:
        missing = [name for name, file in files.items() if not file.is_file()]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InputError(f"{self.name}: {begin} no image of {', '.join(missing[:3])}{more}; leave those faces out")


def read_pixels(file: Path, name: str) -> Images:
    """The pixels [H,W,3] uint8 RGB of an opaque 8-bit image file; nothing else is guessed at, but an InputError."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            opaque = image.mode in ("L", "RGB", "P") and "transparency" not in image.info
            mode, pixels = image.mode, np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's decoders have no common base
        raise InputError(f"external: {file.name} for {name} is no readable image; write it again") from error
    if not opaque:
        raise InputError(f"external: {file.name} for {name} is an image of mode {mode}, and 8-bit RGB is needed")
    return pixels


@ANONYMIZERS.add
class External(Program, Anonymizer):
    """Crops by a program that is not ours, all in one run, or by images that it made in a folder; see `Program`."""

    name = "external"
    traits = Traits("external program", "external", "the program's own")

    def __call__(self, faces: Faces) -> Images:
        return self.made_of(faces)
