"""Options of de-identification: each is declared once, as a field of a group, for the library and the commands alike.

Nothing heavy is imported, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from ficgan.device import PRECISIONS
from ficgan.errors import UsageError, hint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ficgan.anonymizers import Anonymizer, Faces
    from ficgan.faces import FaceDetector, Recognizer
    from ficgan.faces.covers import ObjectDetector
    from ficgan.policy import Policy

    Image = NDArray[np.uint8]

Diversity = float | Literal["auto"]
Box = tuple[float, float, float, float]
Link = Literal["none", "file", "job"]
Verify = Literal["full", "sampled", "off"]
# What becomes of a value: recorded in side-cars and part of a run's digest; recorded only (machine); recorded as
# whether it was given, and part of the digest (file); recorded as a number (photos); recorded as whether it was given
# (secret); neither (run).
Role = Literal["recorded", "machine", "file", "photos", "secret", "run"]
OPAQUE = ("plain", "black")  # Covers of one colour: nothing of the face is left to see
COVERS = (*OPAQUE, "blur", "mosaic")  # All that may be a fallback or cover a region
# The modes of our own; others are names of anonymisers, with parameters or without. solid is the same as black.
HIDING = ("ficgan", *COVERS, "solid")
KIND_PARTS = ("ethnicity", "gender", "age")  # What the kind of a person consists of
MAX_MEGAPIXELS = 100.0
T = TypeVar("T")


class Option(NamedTuple):
    """How a field is an option of the commands."""

    help: str
    flags: tuple[str, ...] = ()
    kind: type = str
    low: float | None = None
    high: float | None = None
    above: bool = False  # whether `low` itself is too small
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None  # reads a text; the message of its ValueError follows the text
    check: Callable[[str], Any] | None = None  # the same, of what stays a text
    metavar: str | None = None
    many: bool = False  # whether it may be repeated
    shown: str = ""  # the default, where the value itself says little
    role: Role = "recorded"


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """A dataclass field that is an option of the commands, see `Option`; its kind is the default's unless given."""
    if default is not None and not more.get("many"):
        more.setdefault("kind", type(default))
    more.setdefault("metavar", {"file": "FILE", "photos": "PHOTO"}.get(more.get("role", "")))
    return field(default=default, metadata={"option": Option(help, flags, **more)})


def options_of(group: type) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The fields of a group that are options of the commands; a flag is the field's name, unless others are given."""
    for entry in dataclasses.fields(group):
        if "option" in entry.metadata:
            made: Option = entry.metadata["option"]
            yield entry, made if made.flags else made._replace(flags=("--" + entry.name.replace("_", "-"),))


def check(group: Any) -> None:
    """Refuse what a group's declared limits and choices do not allow; a value of another kind is a TypeError."""
    for entry, limits in options_of(type(group)):
        value, name = getattr(group, entry.name), entry.name
        if limits.choices and value not in limits.choices:
            raise UsageError(f"{name} {value!r} is unknown; it is one of {', '.join(limits.choices)}")
        if value is None or limits.low is None:
            continue
        if not math.isfinite(value) or value < limits.low or (limits.above and value == limits.low):
            raise UsageError(f"{name} is {value}; give a number {'above' if limits.above else 'from'} {limits.low:g}")


# -- values that are written as texts ---------------------------------------------------------------------------------


def number(text: str) -> float:
    """A number, or NaN where the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_size(text: str) -> tuple[int, int]:
    """Width and height, such as 1280x720."""
    found = re.fullmatch(r"0*([1-9]\d*)x0*([1-9]\d*)", text.lower(), re.ASCII)
    if found is None:
        raise ValueError("is not of the form WxH, with numbers from 1 on")
    return int(found[1]), int(found[2])


def parse_layer(text: str) -> int | str:
    """I, or FIRST-LAST."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text, re.ASCII)
    if found is None or (found[2] and not 1 <= int(found[1]) <= int(found[2])):
        raise ValueError("must be I, or FIRST-LAST with 1 ≤ FIRST ≤ LAST")
    return f"{int(found[1])}-{int(found[2])}" if found[2] else int(found[1])


def parse_diversity(text: str) -> Diversity:
    """`auto`, or ψ from 0 to 1."""
    if text == "auto":
        return "auto"
    if not 0 <= number(text) <= 1:
        raise ValueError("is neither 'auto' nor a number between 0 and 1")
    return float(text)


def parse_direction(text: str) -> str:
    """An attribute and how much of it to add, such as Female=0.7."""
    name, _, amount = text.partition("=")
    if not name or not math.isfinite(number(amount)):
        raise ValueError("is not of the form NAME=AMOUNT, such as Female=0.7")
    return text


def parse_kind(text: str) -> str:
    """Parts of a kind with commas, or none."""
    words = text.split(",")
    if words != ["none"] and not set(words) <= set(KIND_PARTS):
        raise ValueError(f"is not one or more of {','.join(KIND_PARTS)}, or none")
    return text


def parse_box(text: str) -> Box:
    """A box of the picture, X0,Y0,X1,Y1 in pixels."""
    numbers = [number(part) for part in text.split(",")]
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError("is not of the form X0,Y0,X1,Y1")
    x0, y0, x1, y1 = numbers
    if x0 >= x1 or y0 >= y1:
        raise ValueError("is empty: X0 < X1 and Y0 < Y1 are needed")
    return x0, y0, x1, y1


def parse_cover_also(text: str) -> tuple[str, str, str]:
    """NAME=FILE or NAME=FILE:COVER, as name, file and cover."""
    found = re.fullmatch(r"([a-z][a-z0-9_-]{0,39})=(.+?)(?::([a-z]+))?", text, re.DOTALL)
    if found is None:
        raise ValueError("is not of the form NAME=FILE.onnx, with a name of small letters, such as plates=found.onnx")
    name, file, cover = found[1], found[2], found[3] or COVERS[0]
    if cover not in COVERS:
        raise ValueError(f"ends with a cover that there is not; use {', '.join(COVERS)}")
    return name, file, cover


def parse_time(text: str) -> float:
    """Seconds, or [H:]M:S."""
    parts = [number(part) for part in text.split(":")]
    if len(parts) > 3 or not all(math.isfinite(part) and part >= 0 for part in parts):
        raise ValueError("is not a time; write seconds or [H:]M:S, such as 90 or 1:30")
    return sum(part * 60**place for place, part in enumerate(reversed(parts)))


def parse_span(text: str) -> tuple[float | None, float | None]:
    """Two times with a hyphen between; one may be missing: an end of the film."""
    first, hyphen, last = text.partition("-")
    if not hyphen or not (first or last):
        raise ValueError("is not of the form FROM-TO, such as 1:30-2:00")
    start, end = (parse_time(part) if part else None for part in (first, last))
    if start is not None and end is not None and start >= end:
        raise ValueError("ends before it begins")
    return start, end


def without_folders(text: str) -> str:
    """ "onnx:/home/me/r.onnx" → "onnx:r.onnx"."""
    return re.sub(r"[^\s:+='\"]*/(?=[^/\s])", "", text)


def check_cover(name: str) -> str:
    """The name of a cover, one of `COVERS`; solid is black; UsageError else."""
    name = "black" if name == "solid" else name
    if name not in COVERS:
        raise UsageError(f"there is no cover {name!r}; use {', '.join(COVERS)}")
    return name


# -- the groups -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hiding:
    """What hides a face; `mode` may also be an anonymiser. A fallback under which it is recognised becomes plain."""

    mode: str | Anonymizer = option(
        "ficgan",
        "What takes a face's place: ficgan, a new face; plain, one colour from beside it; solid, black; blur, mosaic "
        "(can be reversed); or another anonymiser of `ficgan-eval list anonymizers`, such as dp-pix:eps=1.",
        metavar="NAME[:PARAMETER=VALUE,...]",
    )
    fallback: str = option("plain", "What covers a face that cannot be generated.", choices=COVERS)
    mask_scale: float = option(1.0, "Size of the replaced region, in face crops.", low=0, above=True)
    background: Faces | None = option(
        None, "Other people's aligned faces, for modes that need them.", metavar="FACES", role="file"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "fallback", check_cover(self.fallback))
        check(self)


@dataclass(frozen=True)
class Identity:
    """Who takes a face's place.

    Args:
        band: "first-last": put the k-same code into just these style layers, in place of `layer`.
        exemplar: uint8 [H,W,3] RGB with one face, given by the user.
        alpha: w_d = w_m + α·(w_t − w_m) for the exemplar's code w_t.
        swap: put the exemplar's own code in place of w_m, as α = 1 does.
        link: "job": one person keeps one new face in all photos that a `Deidentifier` sees, in their order; "file": in
            each photo another one. Films have it in their own settings.

    A `Deidentifier` of a loaded model takes k, band, alpha, attributes, add, swap and keep_kind from the model.
    """

    k: int = option(3000, "People whose identity codes are averaged; small groups need a smaller k.", low=2)
    layer: int = option(
        0,
        "Layers 1…I keep the source's code, the others take the k-same code: 0 is strongest. FIRST-LAST: only these "
        "take it. The embedded model has L = 10.",
        metavar="I|FIRST-LAST",
        parse=parse_layer,
    )
    band: str | None = None
    psi: Diversity = option(
        "auto", "ψ of the variance-restored mean.", "--diversity", metavar="auto|PSI", parse=parse_diversity
    )
    seed: int | None = option(
        None, "Same seed, same input, same faces.", kind=int, low=0, shown="random, not kept", role="secret"
    )
    attributes: str | None = option(
        None,
        "Average only people with these attributes (-NAME: without), such as 'East Asian,-Male' with --k 500; "
        "`ficgan bank show` lists them.",
        metavar="LIST",
    )
    add: Sequence[str] = option(
        (),
        "Add an attribute's direction, such as Female=0.7 or 60-69=1; may be repeated.",
        metavar="NAME=AMOUNT",
        parse=parse_direction,
        many=True,
    )
    keep_kind: str | Sequence[str] = option(
        ",".join(KIND_PARTS), "What a new face keeps; or none.", metavar="LIST", parse=parse_kind
    )
    exemplar: Image | None = option(None, "A face photo of yours to move the identity towards.", role="file")
    alpha: float = option(0.5, "Share of the exemplar; 1 is a swap and not anonymous.", low=0)
    swap: bool = False
    link: str = "file"

    def __post_init__(self) -> None:
        if self.link not in ("file", "job"):
            raise UsageError(f"link {self.link!r} is unknown for photos; it is file or job")

    @property
    def controls(self) -> dict[str, Any]:
        """What the model itself holds."""
        names = ("k", "band", "seed", "alpha", "attributes", "add", "swap", "keep_kind")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Finding:
    """Which faces are found, and which of them stay.

    Args:
        detector: may also be a back end. Faces without finite landmarks get a cover in place of a new face.
        scale: factor of the picture that is searched, or size that it is made to fit, see `get_detector`.
        cover_also: texts as of the command, or detectors of one's own.
        keep, only: photos uint8 [H,W,3] RGB by name.
        boxes: x0, y0, x1, y1 in pixels.
    """

    detector: FaceDetector | str = option("auto", "auto, insightface, yunet or centerface.")
    threshold: float | None = option(
        None, "Detection threshold, 0 to 1.", "-t", "--thresh", kind=float, low=0, high=1, shown="the detector's"
    )
    scale: float | tuple[int, int] | None = option(
        None, "Search a copy of this size, px.", metavar="WxH", parse=parse_size, shown="several; films: 960"
    )
    thorough: bool = option(False, "Always search at all scales; three times as long on portraits.")
    min_score: float | None = option(
        None, "Photos: finds with a lower score stay as they are.", kind=float, low=0, high=1
    )
    strict: bool = option(
        False, "Photos: cover doubtful finds (low score, cut by the border) and places that may be faces."
    )
    keep: Mapping[str, Image] = option(
        None, "Leave this person (or those of a folder) as is.", many=True, role="photos"
    )
    only: Mapping[str, Image] = option(None, "Hide this person (or those of a folder) alone.", many=True, role="photos")
    boxes: Sequence[Box] = option(
        (), "Leave faces inside this box, in px.", "--keep-box", metavar="X0,Y0,X1,Y1", parse=parse_box, many=True
    )
    cover_also: Sequence[str | ObjectDetector] = option(
        (),
        "Cover what this detector finds, too, such as plates=FILE.onnx: a YOLOv8 export, or one with boxes "
        "x0,y0,x1,y1,score,class. COVER: plain (if not given), black, blur, mosaic. May be repeated.",
        metavar="NAME=FILE[:COVER]",
        check=parse_cover_also,
        many=True,
    )

    def __post_init__(self) -> None:
        for name in ("keep", "only"):
            object.__setattr__(self, name, getattr(self, name) or {})


@dataclass(frozen=True)
class Checking:
    """How each new face is checked, by back ends or names, the first of which also tells people apart."""

    recognizer: Recognizer | str | Sequence[Recognizer | str] | None = option(
        ("auto",), "Checks the result: auto, dlib, insightface or onnx:PATH; repeatable.", many=True
    )
    policy: Policy | None = None  # verification, retries and coverage; None: the usual one

    @property
    def recognizers(self) -> tuple[Recognizer | str, ...]:
        """All of them."""
        given = self.recognizer
        if isinstance(given, Sequence) and not isinstance(given, str):
            return tuple(given)
        return () if given is None else (given,)


@dataclass(frozen=True)
class Computing:
    """The networks, and what computes them; a checkpoint of your own needs its own bank."""

    device: str = option("cpu", "cpu, cuda, cuda:N or auto.", role="machine")
    precision: str = option("auto", "Of networks on crops.", choices=PRECISIONS)
    checkpoint: str | Path | None = option(None, "Model.", shown="the embedded one", role="file")
    bank: str | Path | None = option(None, "Identity bank.", shown="the embedded one", role="file")


@dataclass(frozen=True)
class Publishing:
    """How photos are read and written."""

    require_face: bool = option(False, "A photo without a face is a failure.", role="run")
    tag: bool = option(True, "Mark results with generated faces as synthetic media.", "--tag/--no-tag")
    keep_metadata: bool = option(
        False, "Photos: keep camera, time, place, captions and copyright, nothing else.", "-m", "--keep-metadata"
    )
    max_megapixels: float = option(
        MAX_MEGAPIXELS, "Larger images are refused undecoded.", low=0, above=True, role="run"
    )


@dataclass(frozen=True)
class FilmSearch:
    """How films are searched, followed and checked: what the commands offer of `ficgan.video.VideoSettings`."""

    stride: int = option(5, "Films: the detector looks at every n-th frame.", low=1)
    pad: float = option(0.4, "Films: cover a face this long before and after.", metavar="SECONDS", low=0)
    link: Link = option(
        "file", "One new face for a person in a file, in all of the run, or per track.", choices=get_args(Link)
    )
    verify: Verify = option(
        "sampled",
        "Re-read each new face; one that matches its source is retried, then covered. Another detector looks through "
        "finished films: all frames, or one a second.",
        choices=get_args(Verify),
    )


@dataclass(frozen=True)
class FilmPart:
    """Which part of a film is taken, and where all faces in it stay; times in seconds."""

    start: float | None = option(None, "Films: begin here, [H:]M:S.", metavar="TIME", parse=parse_time)
    end: float | None = option(None, "Films: end here.", metavar="TIME", parse=parse_time)
    spans: Sequence[tuple[float | None, float | None]] = option(
        (), "Films: leave all faces in this time.", "--keep-span", metavar="FROM-TO", parse=parse_span, many=True
    )


@dataclass(frozen=True)
class FilmEncoding:
    """How films are written: what the commands offer of `ficgan.video.EncodeOptions`."""

    codec: str = option("h264", "Films: video encoder, by FFmpeg's name.")
    crf: int | None = option(None, "Films: quality, lower is better.", kind=int, low=0, high=63, shown="18 for h264")
    pixel_format: str | None = option(
        None, "Films: FFmpeg's pixel format.", "--pix-fmt", metavar="NAME", shown="the source's"
    )
    audio: str = option("copy", "Films: sound as it is (a voice identifies, too), or none.", choices=("copy", "drop"))


GROUPS: tuple[type, ...] = (Identity, Hiding, Finding, Checking, Computing)  # What a `Deidentifier` is made of
COMMAND: tuple[type, ...] = (*GROUPS, Publishing, FilmSearch, FilmPart, FilmEncoding)  # All that commands offer


def grouped(groups: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of a `Deidentifier`, by name, with single fields of them, or of `Policy`, changed."""
    from ficgan.policy import Policy

    left, made = dict(fields), {}

    def taken(kind: type[T], given: T | None) -> T:
        names = [entry.name for entry in dataclasses.fields(kind) if entry.name in left]  # type: ignore[arg-type]
        changes = {name: left.pop(name) for name in names}
        return dataclasses.replace(kind() if given is None else given, **changes)  # type: ignore[type-var]

    checking = groups.get("checking") or Checking()
    left["policy"] = taken(Policy, left.get("policy") or checking.policy)
    for kind in GROUPS:
        made[kind.__name__.lower()] = taken(kind, groups.get(kind.__name__.lower()))
    if left:
        name, known = next(iter(left)), [entry.name for kind in (*GROUPS, Policy) for entry in dataclasses.fields(kind)]
        raise UsageError(f"there is no option {name!r}; {hint(name, known)}")
    return made
