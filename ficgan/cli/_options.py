"""Options of the commands that hide faces: made of the groups of `ficgan.options`, and what the library gets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ficgan import options as declared
from ficgan.cli._shared import Finite, Parsed
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images import READABLE_SUFFIXES
from ficgan.options import Option, options_of
from ficgan.workers import SUPPORTED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.anonymizers import Anonymizer, Faces
    from ficgan.video.media import EncodeOptions
    from ficgan.video.settings import Rules, VideoSettings


# Longest side at which frames are searched with --thorough: that of any film.
WHOLE_FRAMES = 1 << 14
OWN_MODES = ("ficgan", "plain", "black", "solid", "blur", "mosaic")
# Side of the background's crops in memory, px; the papers' size.
LARGEST_FACE = 224


# -- from fields to options of click -----------------------------------------------------------------------------------


def _check_mode(text: str) -> str:
    try:
        chosen_method(text)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text


def _type_of(name: str, one: Option) -> click.ParamType[Any]:
    if name == "mode":
        return Parsed(_check_mode, whole=True)
    if one.parse is not None:
        return Parsed(one.parse)
    if one.choices:
        return _Cover(one.choices) if name == "fallback" else click.Choice(one.choices)
    if one.kind is int:
        low, high = (None if limit is None else int(limit) for limit in (one.low, one.high))
        return click.IntRange(low, high)
    if one.kind is float:
        return Finite(one.low, one.high, min_open=one.above)
    return click.Path(exists=name == "background") if one.role in ("file", "photos") else click.STRING


class _Cover(click.Choice[str]):
    """A cover; solid, the older word, is black."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert("black" if value == "solid" else value, param, ctx)


def of_group(group: type, *names: str, **changes: Any) -> tuple[Any, ...]:
    """The options of a group, or some of them, as decorators; `changes` of click's settings."""
    made = []
    for field, one in options_of(group):
        if names and field.name not in names:
            continue
        settings: dict[str, Any] = {"default": field.default, "help": one.help, "metavar": one.metavar}
        if isinstance(field.default, bool):
            settings |= {"is_flag": True, "show_default": "/" in one.flags[-1]}
        else:
            shown = field.default not in (None, ()) and not one.shown
            settings |= {"type": _type_of(field.name, one), "multiple": one.many, "show_default": shown}
            if one.many:
                settings["default"] = field.default or ()
        if one.shown:
            settings["help"] += f"  [default: {one.shown}]"
        made.append(click.option(*one.flags, field.name, **{**settings, **changes}))
    return tuple(made)


# How a face is hidden.
HIDE = of_group(declared.Hiding, "mode", "background")
# Who takes a face's place.
FACE = of_group(declared.Identity) + of_group(declared.Hiding, "mask_scale")
# How faces are found and linked.
SEARCH = of_group(declared.Finding, "detector", "threshold", "scale", "thorough") + of_group(declared.Checking)
# What becomes of finds that may be no faces.
DOUBT = of_group(declared.Finding, "min_score", "strict")
# Who stays as they are.
PEOPLE = of_group(declared.Finding, "keep", "only", "boxes")
# How photos are written.
PHOTOS_OUT = of_group(declared.Publishing, "require_face", "tag", "keep_metadata")
TAG = of_group(declared.Publishing, "tag")[0]
# The networks and the limits of the machine.
MODEL = of_group(declared.Computing) + of_group(declared.Publishing, "max_megapixels")


NO_VERIFY = click.option("--no-verify", "verify", flag_value="off", help="The same as --verify off.")


def film_check(what: str = "") -> tuple[Any, ...]:
    """--verify and --no-verify; `what` is the help where it is not the usual one."""
    return (*of_group(declared.FilmSearch, "verify", **({"help": what} if what else {})), NO_VERIFY)


def fallback(default: str | None = "plain") -> Any:
    """--fallback; None: as something else says."""
    return of_group(declared.Hiding, "fallback", default=default, show_default=default is not None)[0]


# The check and the cover of commands that take photos alone.
STILLS = (
    click.option(
        "--verify/--no-verify",
        default=True,
        show_default=True,
        help="Re-read each new face; one that still matches its source is retried, then covered.",
    ),
    fallback(),
)


def sandboxed(usual: bool) -> Any:
    """--sandbox."""
    return click.option(
        "--sandbox/--no-sandbox",
        default=usual,
        show_default=True,
        help="Hold the processes that work on files to limits: memory, time, no network, no writing elsewhere.",
    )


# Where files come from strangers.
SANDBOX = sandboxed(SUPPORTED)
# How films are searched and followed.
VIDEO_SEARCH = of_group(declared.FilmSearch, "stride", "pad", "link") + of_group(declared.FilmPart, "start", "end")
# Who stays as they are in a film, and the fallback for others.
VIDEO_PEOPLE = (*PEOPLE, *of_group(declared.FilmPart, "spans"), fallback())
# How films are written.
VIDEO_OUT = of_group(declared.FilmEncoding)

# All that is declared, by name.
OPTIONS: Mapping[str, Option] = {field.name: one for group in declared.COMMAND for field, one in options_of(group)}


# -- what the library gets ---------------------------------------------------------------------------------------------


def engine_settings(given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Options of HIDE, FACE, SEARCH and MODEL as `Deidentifier.from_pretrained` takes them; for files see `loaded`."""
    if "mode" not in more:  # a project's faces may have modes of their own
        _check_background(given)
        name = str(given["mode"]).partition(":")[0]
        if name != "ficgan" and (idle := typed(declared.Identity, but=("seed",))):
            raise UsageError(f"--mode {name} draws no new face, so {', '.join(idle)} would do nothing; leave that out")
    if given["scale"] is not None and given["thorough"]:
        raise UsageError("--scale and --thorough exclude each other: one size, or all of them")
    plain = {
        field.name: given[field.name]
        for group in declared.GROUPS
        for field, one in options_of(group)
        if field.name in given and (one.role != "photos" and field.name not in ("exemplar", "background"))
    }
    if isinstance(plain["layer"], str):
        plain |= {"layer": 0, "band": plain["layer"]}
    return {**plain, **more}


def typed(group: type, *, but: tuple[str, ...] = ()) -> list[str]:
    """The flags of a group that stand on the command line."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    return [
        one.flags[-1]
        for field, one in options_of(group)
        if field.name not in but and context.get_parameter_source(field.name) is ParameterSource.COMMANDLINE
    ]


def recorded(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a side-car tells of the options: no seed, no key, no name and no folder of this machine."""
    return {
        f"{name}_photos" if OPTIONS[name].role == "photos" else name: _told(name, value)
        for name, value in given.items()
        if name in OPTIONS and OPTIONS[name].role != "run"
    }


def _told(name: str, value: Any) -> Any:
    role = OPTIONS[name].role
    if role in ("file", "secret"):
        return value is not None
    if role == "photos":
        return len(value)
    if name == "mode" and value not in OWN_MODES:
        from ficgan.anonymizers.modes import shown

        return shown(value, chosen_method(value))
    if name == "recognizer":
        from ficgan.anonymizers.modes import without_folders

        return ", ".join(map(without_folders, value))
    return value


def digest(given: Mapping[str, Any], **more: Any) -> str:
    """What tells runs apart whose results differ; without the seed and a method's key, which a hash would betray."""
    told = {
        name: _told(name, value) if name == "mode" else value
        for name, value in given.items()
        if name in OPTIONS and OPTIONS[name].role in ("recorded", "file", "photos")
    }
    return hashlib.sha256(json.dumps({**told, **more}, default=str, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=4)
def chosen_method(mode: str) -> Anonymizer | None:
    """The anonymiser of a mode, made once; None for the modes of our own, for which nothing is imported."""
    if mode in OWN_MODES:
        return None
    from ficgan.anonymizers.modes import method_of

    return method_of(mode)


def _check_background(given: Mapping[str, Any]) -> None:
    """A UsageError where the mode lacks the background that it needs, or has no use for one."""
    mode = str(given["mode"])
    method = chosen_method(mode)
    if given["background"] is None:
        if method is not None and "background" in method.traits.needs:
            raise UsageError(f"--mode {method.name} needs other people's aligned faces; give --background FACES")
    elif method is None or not method.traits.needs & {"background", "overlays"}:
        raise UsageError(f"--mode {mode.partition(':')[0]} has no use for --background; leave it out")


def loaded(given: Mapping[str, Any]) -> dict[str, Any]:
    """The files that options name, as `Deidentifier.from_pretrained` takes them; read now."""
    files: dict[str, Any] = {}
    if given["exemplar"] is not None:
        files["exemplar"] = photos([given["exemplar"]], "--exemplar", given)[0]
    if given["background"] is not None:
        files["background"] = read_background(given["background"])
    return files


def caution(mode: str) -> str | None:
    """A sentence for modes that leave faces recognisable, or that can be undone; None for others."""
    if mode in ("ficgan", "plain", "black", "solid"):
        return None
    from ficgan.anonymizers.modes import caution

    return caution(mode, chosen_method(mode))


def max_pixels(given: Mapping[str, Any]) -> int:
    return max(1, int(given["max_megapixels"] * 1e6))


def video_settings(given: Mapping[str, Any]) -> VideoSettings:
    """Options of the video groups, and what takes a face's place, as the library's settings."""
    from ficgan.video.settings import VideoSettings

    usual = WHOLE_FRAMES if given.get("thorough") else VideoSettings.detect_size
    names = ("stride", "pad", "link", "mode", "fallback", "mask_scale", "verify")
    return VideoSettings(
        detect_size=max(given["scale"]) if given["scale"] else usual, **{name: given[name] for name in names}
    )


def video_rules(given: Mapping[str, Any]) -> Rules:
    """Who stays as they are, by the options."""
    from ficgan.video.settings import Rules

    keep, only = (people(given[name], f"--{name}", given) for name in ("keep", "only"))
    return Rules(keep=keep, only=only, boxes=given["boxes"], spans=given["spans"])


def encode_options(given: Mapping[str, Any]) -> EncodeOptions:
    """How the options want films to be written."""
    from ficgan.video.media import EncodeOptions

    return EncodeOptions(**{name: given[name] for name in ("codec", "crf", "pixel_format", "audio", "tag")})


def people(paths: tuple[str, ...], flag: str, given: Mapping[str, Any]) -> dict[str, NDArray[np.uint8]]:
    """Photos of people by name; a folder stands for all photos in it."""
    names: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            names.append(path)
            continue
        inside = [str(file) for file in sorted(Path(path).iterdir()) if file.suffix.lower() in READABLE_SUFFIXES]
        if not inside:
            raise UsageError(f"{flag} {path}: the folder holds no photo")
        names += inside
    return dict(zip(names, photos(names, flag, given), strict=True))


def photos(paths: list[str], flag: str, given: Mapping[str, Any]) -> list[NDArray[np.uint8]]:
    """Photos named by an option, H×W×3 uint8 RGB."""
    from ficgan.images import read_image

    try:
        return [read_image(Path(path), max_pixels=max_pixels(given)).rgb for path in paths]
    except InputError as error:
        raise UsageError(f"{flag} {error}") from error


def read_background(path: str) -> Faces:
    """A folder, zip or tar of aligned faces as one set in memory, at most 224 px; a UsageError where that fails.

    People come from labels.csv in the folder; else from folders, one per person; else every image is a person.
    """
    import numpy as np

    from ficgan.anonymizers import Faces
    from ficgan.data import open_faces
    from ficgan.data.dataset import Labels, check_alignment, decode_rgb
    from ficgan.faces import Alignment

    labels = Path(path, "labels.csv")
    try:
        known = labels if labels.is_file() else None
        data = open_faces([path], resolution=LARGEST_FACE, labels=known)
        check_alignment(data, Alignment(), "a background")
        size = min(LARGEST_FACE, *decode_rgb(data.blobs[0]).size)
        data = open_faces([path], resolution=size, labels=known)
        people = None if data.labels is None else data.labels.people
        if known is None and all("/" in name for name in data.names):
            people = Labels.from_folders(data.names).people
        images = np.ascontiguousarray(data.resident().permute(0, 2, 3, 1).numpy())
    except FicganError as error:
        raise UsageError(f"--background {Path(path).name}: {error}") from error
    people = np.arange(len(images)) if people is None else people
    told = people >= 0
    return Faces(images[told], tuple(np.array(data.names)[told].tolist()), people=people[told].astype(np.int64))
