"""Options of the commands that hide faces, in groups, and what the library calls them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ficgan.cli._shared import KIND, Box, Direction, Diversity, Finite, KindParts, Mode, Pair, Seconds
from ficgan.device import PRECISIONS
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images import MAX_PIXELS, READABLE_SUFFIXES
from ficgan.workers import SUPPORTED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.anonymizers import Anonymizer, Faces
    from ficgan.video.media import EncodeOptions
    from ficgan.video.settings import Rules, VideoSettings


WHOLE_FRAMES = 1 << 14
"""Longest side at which frames are searched with --thorough: that of any film."""

HIDE: tuple[Any, ...] = (
    click.option(
        "--mode",
        metavar="NAME[:PARAMETER=VALUE,...]",
        type=Mode(),
        default="ficgan",
        show_default=True,
        help="What takes a face's place: ficgan, a new face; plain, one colour from beside the face, or solid, black; "
        "blur, mosaic, which can be reversed; or another "
        "anonymiser, such as dp-pix:eps=1. `ficgan-eval list anonymizers` lists them.",
    ),
    click.option(
        "--background",
        metavar="FACES",
        type=click.Path(exists=True),
        help="Other people's aligned faces, a folder, zip or tar, for the modes that need them (k-same-pixel, "
        "k-same-eigen, average-face).",
    ),
    click.option(
        "--background-labels",
        metavar="CSV",
        type=click.Path(exists=True),
        help="Whose they are: columns file and person.  [default: a folder per person, or every image another one]",
    ),
)
"""How a face is hidden."""

FACE: tuple[Any, ...] = (
    click.option(
        "--k",
        type=click.IntRange(min=2),
        default=3000,
        show_default=True,
        help="Number of people whose identity codes are averaged; small groups of --attributes need a smaller k.",
    ),
    click.option(
        "--layer",
        metavar="I",
        type=click.IntRange(min=0),
        default=None,
        help="Layers 1…I keep the source's code, I+1…L take the k-same code: 0 is strongest, L−1 weakest. "
        "The embedded model has L = 10: layers 1 and 2 hold light, 3 to 10 the face, coarse to fine.  [default: 0]",
    ),
    click.option(
        "--layers",
        "band",
        metavar="FIRST-LAST",
        type=Pair("FIRST-LAST", "-"),
        help="Put the k-same code into these style layers only, in place of --layer.",
    ),
    click.option(
        "--alpha",
        type=Finite(min=0),
        default=0.5,
        show_default=True,
        help="Share of the exemplar: 0 the k-same face; 1 the exemplar itself, which is a swap and not anonymous.",
    ),
    click.option(
        "--diversity",
        "psi",
        type=Diversity(),
        default="auto",
        show_default=True,
        help="ψ of the variance-restored mean: 0 the plain mean; auto: what the model does best with; embedded: 1.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        help="Same seed, same input, same faces; the audit states a commitment only.  [default: random, not kept]",
    ),
    click.option(
        "--attributes",
        metavar="LIST",
        help="Average only people with these attributes (-NAME: without), such as 'Female' or, with --k 500, "
        "'East Asian,-Male'. `ficgan bank show` lists them with their counts; k = 3000 fits large groups only.",
    ),
    click.option(
        "--add",
        "directions",
        type=Direction(),
        multiple=True,
        help="Add an attribute's direction, such as Female=0.7 or 60-69=1; may be repeated.",
    ),
    click.option(
        "--keep-kind",
        metavar="LIST",
        default=",".join(KIND),
        show_default=True,
        type=KindParts(),
        help="What of the kind of person a new face keeps: ethnicity, gender, age, with commas, or none. It is read "
        "from the face and kept as a group. The record says what was kept, not which group.",
    ),
    click.option(
        "--exemplar", metavar="FILE", type=click.Path(), help="A face photo of yours to move the identity towards."
    ),
    click.option("--swap", is_flag=True, help="Use the exemplar's identity in place of the k-same one."),
    click.option(
        "--mask-scale",
        type=Finite(min=0, min_open=True),
        default=1.0,
        show_default=True,
        help="Size of the replaced region, as a multiple of the face crop.",
    ),
)
"""Who takes a face's place."""

SEARCH: tuple[Any, ...] = (
    click.option("-t", "--thresh", type=Finite(0, 1), help="Detection threshold, 0 to 1.  [default: the detector's]"),
    click.option(
        "--scale",
        metavar="WxH",
        type=Pair("WxH", "x"),
        help="Detect faces on a copy that fits this size, in px.  [default: several scales; in films at most 960 px]",
    ),
    click.option(
        "--thorough",
        is_flag=True,
        help="Search at all scales, in several passes, even where the first look is clear; takes about three times as "
        "long on portraits.",
    ),
    click.option("--detector", default="auto", show_default=True, help="auto, insightface, yunet, centerface or dlib."),
    click.option(
        "--recognizer",
        default=("auto",),
        show_default=True,
        multiple=True,
        help="Checks the result: auto, dlib, insightface or onnx:PATH. May be repeated: a new face passes only if none "
        "of them takes it for its source.",
    ),
)
"""How faces are found and linked."""

DOUBT: tuple[Any, ...] = (
    click.option(
        "--min-score",
        type=Finite(0, 1),
        help="Photos: finds with a lower detection score are taken for no faces and stay as they are.",
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="Photos: cover doubtful finds (low score, an animal, cut by the border) and places that may be faces.",
    ),
)
"""What becomes of finds that may be no faces."""

VERIFY = click.option(
    "--verify/--no-verify",
    "verify",
    default=True,
    show_default=True,
    help="Re-read each new face; one that still matches its source is retried, then covered.",
)
"""The check, where no finished film is looked through."""


def film_check(what: str) -> tuple[Any, ...]:
    """--verify and --no-verify, where a finished film can be looked through."""
    return (
        click.option(
            "--verify", type=click.Choice(["full", "sampled", "off"]), default="sampled", show_default=True, help=what
        ),
        click.option("--no-verify", "verify", flag_value="off", help="The same as --verify off."),
    )


class _Cover(click.Choice[str]):
    """A cover; solid, the older word, is black."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert("black" if value == "solid" else value, param, ctx)


def fallback(what: str, *, default: str | None = "plain") -> Any:
    """--fallback."""
    return click.option(
        "--fallback",
        type=_Cover(["plain", "black", "blur", "mosaic"]),
        default=default,
        show_default=default is not None,
        help=f"What covers a face {what} plain: one colour from beside the face; blur and mosaic can be reversed.",
    )


STILLS = (VERIFY, fallback("that cannot be generated."))
"""The check and the cover of commands that take photos alone."""
TAG = click.option(
    "--tag/--no-tag",
    default=True,
    show_default=True,
    help="Mark results with generated faces as synthetic media (XMP DigitalSourceType).",
)
PHOTOS_OUT: tuple[Any, ...] = (
    click.option("--require-face", is_flag=True, help="A photo without a face is a failure, and gives no result."),
    TAG,
    click.option(
        "-m",
        "--keep-metadata",
        is_flag=True,
        help="Photos: keep of EXIF and XMP camera, exposure, time, place, captions and copyright. All else is left "
        "out: previews, names of people, authors and owners, keywords, paths, serial numbers.",
    ),
)
"""How photos are written."""

ENGINE = click.option(
    "--engine",
    type=click.Choice(["auto", "onnx", "torch"]),
    default="auto",
    show_default=True,
    help="onnx (the embedded model, and those of `ficgan fit-appearance`) or torch (networks on crops): fail where "
    "the model needs the other; auto takes what it needs.",
)

MODEL: tuple[Any, ...] = (
    click.option(
        "--device",
        default="cpu",
        show_default=True,
        help="cpu, cuda, cuda:N or auto; openvino, coreml or dml where that build of onnxruntime is installed. What is "
        "not there is an error.",
    ),
    ENGINE,
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default="auto",
        show_default=True,
        help="Of the networks; auto: bfloat16 where this machine is faster in it.",
    ),
    click.option(
        "--compile",
        "compile_",
        is_flag=True,
        help="Compile the networks first (a minute or more); pays over many faces.",
    ),
    click.option("--checkpoint", metavar="FILE", type=click.Path(), help="Model.  [default: the embedded one]"),
    click.option("--bank", metavar="FILE", type=click.Path(), help="Identity bank.  [default: the embedded one]"),
    click.option(
        "--max-megapixels",
        type=Finite(min=0, min_open=True),
        default=MAX_PIXELS / 1e6,
        show_default=True,
        help="Larger images are refused without being decoded.",
    ),
)
"""The networks and the limits of the machine."""


SANDBOX = click.option(
    "--sandbox/--no-sandbox",
    default=SUPPORTED,
    show_default=True,
    help="Hold the processes that work on files to limits: memory, time, no network, no writing elsewhere.",
)


VIDEO_SEARCH: tuple[Any, ...] = (
    click.option(
        "--stride",
        type=click.IntRange(min=1),
        default=5,
        show_default=True,
        help="Films: the detector looks at every n-th frame, below 25 frames a second at more of them; the frames "
        "between are interpolated.",
    ),
    click.option(
        "--pad",
        metavar="SECONDS",
        type=Finite(min=0),
        default=0.4,
        show_default=True,
        help="Films: cover a face this long before its first and after its last sighting.",
    ),
    click.option(
        "--link",
        type=click.Choice(["none", "file", "job"]),
        default="file",
        show_default=True,
        help="One new face for a person in a file, in all photos and in all films of this run, or for each track of a "
        "film. Photos are then worked on one by one, in their order.",
    ),
    click.option("--start", metavar="TIME", type=Seconds(), help="Films: begin here, in seconds or [H:]M:S."),
    click.option("--end", metavar="TIME", type=Seconds(), help="Films: end here."),
)
"""How films are searched and followed."""

VIDEO_PEOPLE: tuple[Any, ...] = (
    click.option(
        "--keep",
        "keep",
        metavar="PHOTO",
        multiple=True,
        type=click.Path(),
        help="Leave this person as is; a folder names all whose photos are in it.",
    ),
    click.option(
        "--only",
        "only",
        metavar="PHOTO",
        multiple=True,
        type=click.Path(),
        help="Hide this person (or those of this folder) and no other.",
    ),
    click.option(
        "--keep-box",
        "keep_boxes",
        metavar="X0,Y0,X1,Y1",
        multiple=True,
        type=Box(),
        help="Leave faces that lie inside this box of the picture, in px.",
    ),
    click.option(
        "--keep-span",
        "keep_spans",
        metavar="FROM-TO",
        multiple=True,
        type=Seconds(span=True),
        help="Films: leave all faces in this span of time.",
    ),
    fallback("that cannot be generated: too small, turned away, or still recognised."),
)
"""Who stays as they are in a film, and the fallback for others."""

VIDEO_OUT: tuple[Any, ...] = (
    click.option(
        "--audio",
        type=click.Choice(["copy", "drop"]),
        default="copy",
        show_default=True,
        help="Films: sound as it is (a voice identifies, too), or none.",
    ),
    click.option(
        "-k", "--keep-audio", "audio", flag_value="copy", help="Films: the same as --audio copy; the later one counts."
    ),
    click.option("--codec", default="h264", show_default=True, help="Films: video encoder, by FFmpeg's name."),
    click.option("--crf", type=click.IntRange(0, 63), help="Films: quality, lower is better.  [default: 18 for h264]"),
    click.option(
        "--pix-fmt", "pixel_format", metavar="NAME", help="Films: FFmpeg's pixel format.  [default: the source's]"
    ),
    click.option(  # for tests: how much of an interrupted film is done again
        "--segment", type=Finite(min=0, min_open=True), hidden=True
    ),
)
"""How films are written."""


IDENTITY = {
    "k": "--k",
    "layer": "--layer",
    "band": "--layers",
    "alpha": "--alpha",
    "psi": "--diversity",
    "attributes": "--attributes",
    "directions": "--add",
    "keep_kind": "--keep-kind",
    "exemplar": "--exemplar",
    "swap": "--swap",
}
"""Options that say who takes a face's place; --seed is of other methods, too."""


def typed(names: Mapping[str, str]) -> list[str]:
    """Which of these options stand on the command line."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source
    return [option for name, option in names.items() if source and source(name) is ParameterSource.COMMANDLINE]


def engine_settings(given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Options of HIDE, FACE, SEARCH and MODEL as `Deidentifier.from_pretrained` takes them; for files see `loaded`."""
    if "mode" not in more:  # a project's faces may have modes of their own
        _check_background(given)
        name = str(given["mode"]).partition(":")[0]
        if name != "ficgan" and (idle := typed(IDENTITY)):
            raise UsageError(f"--mode {name} draws no new face, so {', '.join(idle)} would do nothing; leave that out")
    layer, band, scale = given["layer"], given["band"], given["scale"]
    if layer is not None and band is not None:
        raise UsageError("--layer and --layers exclude each other; give one of the two")
    if band is not None and not 1 <= band[0] <= band[1]:
        raise UsageError(f"--layers {band[0]}-{band[1]}: must be FIRST-LAST with 1 ≤ FIRST ≤ LAST")
    if scale is not None and min(scale) < 1:
        raise UsageError(f"--scale {scale[0]}x{scale[1]}: both sides must be 1 px or more")
    if scale is not None and given.get("thorough"):
        raise UsageError("--scale and --thorough exclude each other: one size, or all of them")
    if given["swap"] and given["exemplar"] is None:
        raise UsageError("--swap needs --exemplar FILE, the face to swap in")
    return {
        **{_LIBRARY_NAMES.get(name, name): given[name] for name in _ENGINE if name in given},
        "layer": 0 if layer is None else layer,
        "band": None if band is None else f"{band[0]}-{band[1]}",
        **more,
    }


_ENGINE = (
    "mode",
    "checkpoint",
    "bank",
    "k",
    "seed",
    "alpha",
    "psi",
    "attributes",
    "directions",
    "swap",
    "keep_kind",
    "mask_scale",
    "detector",
    "recognizer",
    "thresh",
    "scale",
    "thorough",
    "device",
    "engine",
    "precision",
    "compile_",
    "fallback",
    "min_score",
    "strict",
)
_LIBRARY_NAMES = {"directions": "add", "thresh": "threshold", "compile_": "compile"}
_RECORDED = (
    "k",
    "layer",
    "band",
    "alpha",
    "psi",
    "attributes",
    "directions",
    "swap",
    "keep_kind",
    "mask_scale",
    "thresh",
    "scale",
    "detector",
    "min_score",
    "strict",
    "verify",
    "fallback",
    "keep_boxes",
    "keep_spans",
    "stride",
    "pad",
    "link",
    "start",
    "end",
    "device",
    "precision",
    "keep_metadata",
    "tag",
    "audio",
    "codec",
    "crf",
    "pixel_format",
)


def recorded(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a side-car tells of the options: no seed, no key, no name and no folder of this machine.

    Of photos of people only the number is told; of files of one's own, that there were some.
    """
    from ficgan.anonymizers.modes import shown, without_folders

    mode = str(given["mode"])
    told: dict[str, Any] = {"mode": mode if mode == "ficgan" else shown(mode, chosen_method(mode))}
    told |= {name: given[name] for name in _RECORDED if name in given}
    told |= {f"{name}_photos": len(given[name]) for name in ("keep", "only") if name in given}
    told |= {
        name: given[name] is not None
        for name in ("seed", "exemplar", "background", "checkpoint", "bank")
        if name in given
    }
    return {**told, "recognizer": ", ".join(without_folders(name) for name in given["recognizer"])}


@lru_cache(maxsize=4)
def chosen_method(mode: str) -> Anonymizer | None:
    """The anonymiser of a mode, made once; None for the modes of our own, for which nothing is imported."""
    if mode in ("ficgan", "plain", "black", "solid", "blur", "mosaic"):
        return None
    from ficgan.anonymizers.modes import method_of

    return method_of(mode)


def _check_background(given: Mapping[str, Any]) -> None:
    """A UsageError where the mode lacks the background that it needs, or has no use for one."""
    mode = str(given["mode"])
    method = chosen_method(mode)
    if given["background"] is None:
        if given["background_labels"] is not None:
            raise UsageError("--background-labels says whose the faces of --background are; give both")
        if method is not None and "background" in method.traits.needs:
            raise UsageError(f"--mode {method.name} needs other people's aligned faces; give --background FACES")
    elif method is None or not method.traits.needs & {"background", "overlays"}:
        raise UsageError(f"--mode {mode.partition(':')[0]} has no use for --background; leave it out")


def loaded(given: Mapping[str, Any]) -> dict[str, Any]:
    """The files that options name, as `Deidentifier.from_pretrained` takes them; read now."""
    exemplar = [] if given["exemplar"] is None else [given["exemplar"]]
    files: dict[str, Any] = {"exemplar": next(iter(photos(exemplar, "--exemplar", given)), None)}
    if given["background"] is not None:
        files["background"] = read_background(given["background"], given["background_labels"])
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
    return VideoSettings(
        stride=given["stride"],
        pad=given["pad"],
        link=given["link"],
        mode=given["mode"],
        fallback=given["fallback"],
        mask_scale=given["mask_scale"],
        verify=given["verify"],
        segment=given.get("segment") or VideoSettings.segment,
        detect_size=max(given["scale"]) if given["scale"] else usual,
    )


def video_rules(given: Mapping[str, Any]) -> Rules:
    """Who stays as they are, by the options."""
    from ficgan.video.settings import Rules

    return Rules(
        keep=people(given["keep"], "--keep", given),
        only=people(given["only"], "--only", given),
        boxes=given["keep_boxes"],
        spans=given["keep_spans"],
    )


def encode_options(given: Mapping[str, Any]) -> EncodeOptions:
    """How the options want films to be written."""
    from ficgan.video.media import EncodeOptions

    return EncodeOptions(
        codec=given["codec"],
        crf=given["crf"],
        pixel_format=given["pixel_format"],
        audio=given["audio"],
        tag=given["tag"],
    )


def people(paths: tuple[str, ...], option: str, given: Mapping[str, Any]) -> dict[str, NDArray[np.uint8]]:
    """Photos of people by name; a folder stands for all photos in it."""
    names: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            names.append(path)
            continue
        inside = [str(file) for file in sorted(Path(path).iterdir()) if file.suffix.lower() in READABLE_SUFFIXES]
        if not inside:
            raise UsageError(f"{option} {path}: the folder holds no photo")
        names += inside
    return dict(zip(names, photos(names, option, given), strict=True))


def photos(paths: tuple[str, ...] | list[str], option: str, given: Mapping[str, Any]) -> list[NDArray[np.uint8]]:
    """Photos named by an option, H×W×3 uint8 RGB."""
    from ficgan.images import read_image

    try:
        return [read_image(Path(path), max_pixels=max_pixels(given)).rgb for path in paths]
    except InputError as error:
        raise UsageError(f"{option} {error}") from error


LARGEST_FACE = 224
"""Side of the crops that are kept, px; the papers' size."""


def read_background(path: str, labels: str | None) -> Faces:
    """A folder, zip or tar of aligned faces as one set in memory, at most 224 px; an UsageError where that fails.

    People come from the labels; else from folders, one per person; else every image is a person.
    """
    import numpy as np

    from ficgan.anonymizers import Faces
    from ficgan.data import open_faces
    from ficgan.data.dataset import check_alignment, decode_rgb
    from ficgan.data.labels import Labels
    from ficgan.faces import Alignment

    try:
        data = open_faces([path], resolution=LARGEST_FACE, labels=labels)
        check_alignment(data, Alignment(), "a background")
        size = min(LARGEST_FACE, *decode_rgb(data.blobs[0]).size)
        data = open_faces([path], resolution=size, labels=labels)
        people = None if data.labels is None else data.labels.people
        if labels is None and all("/" in name for name in data.names):
            people = Labels.from_folders(data.names).people
        images = np.ascontiguousarray(data.resident().permute(0, 2, 3, 1).numpy())
    except FicganError as error:
        raise UsageError(f"--background {Path(path).name}: {error}") from error
    people = np.arange(len(images)) if people is None else people
    known = people >= 0
    return Faces(images[known], tuple(np.array(data.names)[known].tolist()), people=people[known].astype(np.int64))
