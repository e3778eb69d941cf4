"""Options of the commands that hide faces: made of the groups of `ficgan.options`, and what the library gets."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import ficgan.options as declared
from ficgan.cli.main import Console, Finite, Parsed, named
from ficgan.device import cpus
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images import READABLE_SUFFIXES
from ficgan.options import Option, options_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.anonymizers import Anonymizer, Faces

WHOLE_FRAMES = 1 << 14  # Longest side at which frames are searched with --thorough: that of any film
LARGEST_FACE = 224  # Side of the background's crops in memory, px; the papers' size


# -- from fields to options of click -----------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def chosen_method(mode: str) -> Anonymizer | None:
    """The anonymiser of a mode, made once; None for the modes of our own, for which nothing is imported."""
    if mode in declared.HIDING:
        return None
    from ficgan.anonymizers.modes import method_of

    return method_of(mode)


def _type_of(name: str, option: Option) -> click.ParamType[Any]:
    if check := chosen_method if name == "mode" else option.check:
        return Parsed(check, stays=True)
    if option.parse is not None:
        return Parsed(option.parse)
    if option.choices:
        return click.Choice(option.choices)
    if option.kind is int:
        return click.IntRange(option.low, option.high)  # type: ignore[arg-type]  # whole numbers
    if option.kind is float:
        return Finite(option.low, option.high, min_open=option.above)
    return click.Path(exists=name == "background") if option.role in ("file", "photos") else click.STRING


def of_group(group: type, *names: str) -> tuple[Any, ...]:
    """The options of a group, or some of them, as decorators."""
    made = []
    for field, option in options_of(group):
        if names and field.name not in names:
            continue
        settings: dict[str, Any] = {"default": field.default, "metavar": option.metavar, "multiple": option.many}
        if isinstance(field.default, bool):
            settings |= {"is_flag": True, "show_default": "/" in option.flags[-1]}
        else:
            shown = field.default not in (None, ()) and not option.shown
            settings |= {"type": _type_of(field.name, option), "show_default": shown}
        help = f"{option.help}  [default: {option.shown}]" if option.shown else option.help
        made.append(click.option(*option.flags, field.name, help=help, **settings))
    return tuple(made)


# How a face is hidden, and who takes its place.
HIDE = of_group(declared.Hiding, "mode", "background")
FALLBACK = of_group(declared.Hiding, "fallback")
FACE = of_group(declared.Identity) + of_group(declared.Hiding, "mask_scale")
# What is found, what is covered besides faces, what becomes of doubtful finds, who stays.
SEARCH = of_group(declared.Finding, "detector", "threshold", "scale", "thorough") + of_group(declared.Checking)
OBJECTS = of_group(declared.Finding, "cover_also")
DOUBT = of_group(declared.Finding, "min_score", "strict")
PEOPLE = of_group(declared.Finding, "keep", "only", "boxes")
# How photos are written; the networks and the limits of the machine.
PHOTOS_OUT = of_group(declared.Publishing, "require_face", "tag", "keep_metadata")
TAG = of_group(declared.Publishing, "tag")
MODEL = of_group(declared.Computing) + of_group(declared.Publishing, "max_megapixels")
# How films are searched, followed, checked and written.
VIDEO_SEARCH = of_group(declared.FilmSearch, "stride", "pad", "link") + of_group(declared.FilmPart, "start", "end")
VIDEO_SPANS = of_group(declared.FilmPart, "spans")
VERIFY = of_group(declared.FilmSearch, "verify")
VIDEO_OUT = of_group(declared.FilmEncoding)
# Single ones, which other commands have, too.
DEVICE, CHECKPOINT, BANK = of_group(declared.Computing, "device", "checkpoint", "bank")
DETECTOR, THRESHOLD = of_group(declared.Finding, "detector", "threshold")
K, PSI = of_group(declared.Identity, "k", "psi")


def sandbox(usual: bool) -> Any:
    """--sandbox; usual where files come from strangers."""
    help = "Hold the processes that work on files to limits: memory, time, no network, no writing elsewhere."
    return named("--sandbox/--no-sandbox", help, default=usual and sys.platform in ("linux", "darwin"))


# All that is declared, by name.
OPTIONS = {field.name: option for group in declared.COMMAND for field, option in options_of(group)}


# -- what the library gets ---------------------------------------------------------------------------------------------


def share_processors(photos: int = 1, *, mode: str = "ficgan") -> None:
    """Divide the processors among the photos that are worked on at once. To be called before NumPy is loaded.

    OpenBLAS's threads never help: its products are thin here, and they wait in a busy loop. An external mode runs a
    program of the user's, which finds the environment as it was.
    """
    if mode.startswith("external"):
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if photos > 1:
        for name in ("OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"):  # the first: of `onnx_session`
            os.environ.setdefault(name, str(max(1, cpus() // photos)))


def engine_settings(given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Options of HIDE, FACE, SEARCH and MODEL as `Deidentifier.from_pretrained` takes them; for files see `loaded`."""
    if "mode" not in more:  # a project's faces may have modes of their own
        method, name = chosen_method(given["mode"]), given["mode"].partition(":")[0]
        needed = method is not None and not method.traits.needs.isdisjoint({"background", "overlays"})
        if needed and given["background"] is None:
            raise UsageError(f"--mode {name} needs other people's aligned faces; give --background FACES")
        if not needed and given["background"] is not None:
            raise UsageError(f"--mode {name} has no use for --background; leave it out")
        if name != "ficgan" and (idle := typed(declared.Identity, but=("seed",))):
            raise UsageError(f"--mode {name} draws no new face, so {', '.join(idle)} would do nothing; leave that out")
    if given["scale"] is not None and given["thorough"]:
        raise UsageError("--scale and --thorough exclude each other: one size, or all of them")
    plain = {
        field.name: given[field.name]
        for group in declared.GROUPS
        for field, option in options_of(group)
        if field.name in given and option.role != "photos" and field.name not in ("exemplar", "background")
    }
    if isinstance(plain.get("layer"), str):
        plain |= {"layer": 0, "band": plain["layer"]}
    return {**plain, **more}


def typed(group: type, *, but: tuple[str, ...] = ()) -> list[str]:
    """The flags of a group that stand on the command line."""
    source = click.get_current_context().get_parameter_source
    given = {field.name: option.flags[-1] for field, option in options_of(group) if field.name not in but}
    return [flag for name, flag in given.items() if source(name) is ParameterSource.COMMANDLINE]


def recorded(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a side-car holds them: no seed, no key, no name and no folder of this machine."""
    shown = {name: value for name, value in given.items() if name in OPTIONS and OPTIONS[name].role != "run"}
    photos = {name for name in shown if OPTIONS[name].role == "photos"}
    return {f"{name}_photos" if name in photos else name: _shareable(name, value) for name, value in shown.items()}


def _shareable(name: str, value: Any) -> Any:
    role = OPTIONS[name].role
    if role in ("file", "secret"):
        return value is not None
    if role == "photos":
        return len(value)
    if name == "mode" and value not in declared.HIDING:
        from ficgan.anonymizers.modes import shown

        return shown(value, chosen_method(value))
    if name in ("recognizer", "cover_also"):
        return ", ".join(map(declared.without_folders, value))
    return value


def digest(given: Mapping[str, Any], **more: Any) -> str:
    """What tells runs apart whose results differ; without the seed and a method's key, which a hash would betray."""
    decisive = [name for name in given if name in OPTIONS and OPTIONS[name].role in ("recorded", "file", "photos")]
    values = {name: _shareable(name, given[name]) if name == "mode" else given[name] for name in decisive}
    return hashlib.sha256(json.dumps({**values, **more}, default=str, sort_keys=True).encode()).hexdigest()[:16]


def warn_of(mode: str, report: Console) -> None:
    """Say it of modes that leave faces recognisable, or that can be undone; nothing is imported for covers."""
    if mode not in ("ficgan", "plain", "black", "solid"):
        from ficgan.anonymizers.modes import caution

        if warning := caution(mode, chosen_method(mode)):
            report.info(f"Warning: {warning}")


def max_pixels(given: Mapping[str, Any]) -> int:
    return max(1, int(given["max_megapixels"] * 1e6))


def film_options(given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Options of films as the library takes them, as far as a command has them: how they are searched and written, and
    who stays in them (`keep` and `only` as of `people`).
    """
    from ficgan.video import EncodeOptions, Rules, VideoSettings

    def made(kind: type[Any], **values: Any) -> Any:
        return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given}, **values)

    sizes = given["scale"] or (WHOLE_FRAMES if given["thorough"] else VideoSettings.detect_size,)
    parts = {name: given[name] for name in ("start", "end") if name in given}
    parts |= {"rules": made(Rules)} if "keep" in given else {}
    parts |= {"encode": made(EncodeOptions)} if "codec" in given else {}
    return {"settings": made(VideoSettings, detect_size=max(sizes)), **parts, **more}


# -- files that options name ------------------------------------------------------------------------------------------


def loaded(given: Mapping[str, Any]) -> dict[str, Any]:
    """The files that options name, as `Deidentifier.from_pretrained` takes them; read now."""
    exemplar, background = given["exemplar"], given["background"]
    files: dict[str, Any] = {} if exemplar is None else {"exemplar": _photo(Path(exemplar), "--exemplar", given)}
    return files if background is None else {**files, "background": read_background(background)}


def people(given: Mapping[str, Any]) -> dict[str, dict[str, NDArray[np.uint8]]]:
    """The photos of --keep and --only, each by name; a folder stands for all photos in it."""
    found: dict[str, dict[str, NDArray[np.uint8]]] = {"keep": {}, "only": {}}
    for name, photos in found.items():
        for path in map(Path, given[name]):
            every = sorted(path.iterdir()) if path.is_dir() else [path]
            files = [file for file in every if file == path or file.suffix.lower() in READABLE_SUFFIXES]
            if not files:
                raise UsageError(f"--{name} {path}: the folder holds no photo")
            photos |= {str(file): _photo(file, f"--{name}", given) for file in files}
    return found


def _photo(path: Path, flag: str, given: Mapping[str, Any]) -> NDArray[np.uint8]:
    from ficgan.images.read import read_image

    try:
        return read_image(path, max_pixels=max_pixels(given)).rgb
    except InputError as error:
        raise UsageError(f"{flag} {error}") from error


def read_background(path: str) -> Faces:
    """A folder, zip or tar of aligned faces as one set in memory, at most 224 px; a UsageError where that fails.

    People come from labels.csv in the folder; else from folders, one per person; else every image is a person.
    """
    import numpy as np

    from ficgan.anonymizers import Faces
    from ficgan.data import Labels, check_alignment, decode_rgb, open_faces
    from ficgan.faces import Alignment

    labels = Path(path, "labels.csv")
    try:
        data = open_faces([path], resolution=LARGEST_FACE, labels=labels if labels.is_file() else None)
        check_alignment(data, Alignment(), "a background")
        data = replace(data, resolution=min(LARGEST_FACE, *decode_rgb(data.blobs[0]).size))
        people = None if data.labels is None else data.labels.people
        if data.labels is None and all("/" in name for name in data.names):
            people = Labels.from_folders(data.names).people
        images = np.ascontiguousarray(data.resident().permute(0, 2, 3, 1).numpy())
    except FicganError as error:
        raise UsageError(f"--background {Path(path).name}: {error}") from error
    people = np.arange(len(images)) if people is None else people.astype(np.int64)
    return Faces(images, tuple(data.names), people=people).take(np.flatnonzero(people >= 0))
