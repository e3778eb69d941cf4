"""The form of what the report and the exports read of a side-car; all of it: docs/sidecar.schema.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError


def _in_order(box: list[float]) -> list[float]:
    if not (box[0] < box[2] and box[1] < box[3] and max(map(abs, box)) < 1e6):
        raise ValueError("a box is [x0, y0, x1, y1] with x0 < x1 and y0 < y1")
    return box


Box = Annotated[list[float], Field(min_length=4, max_length=4), AfterValidator(_in_order)]
Point = Annotated[list[float], Field(min_length=2, max_length=2)]
Size = Annotated[list[Annotated[int, Field(gt=0, lt=1_000_000)]], Field(min_length=2, max_length=2)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _FaceForm(_Part):
    box: Box
    landmarks: list[Point]
    score: float
    action: str
    matched: bool
    covered: bool
    distance: float | None


class _PlaceForm(_Part):
    box: Box
    score: float


class _MomentForm(_Part):
    box: Box
    time: float = Field(ge=0, lt=1e7)


class _ObjectForm(_Part):
    name: str
    box: Box
    action: str


class _ObjectsForm(_Part):
    covered: NonNegativeInt
    kept: NonNegativeInt


class _CheckForm(_Part):
    checked: bool
    findings: list[_MomentForm]


class _ExemptionForm(_Part):
    rule: Any
    rows: NonNegativeInt
    start: float | None = None
    end: float | None = None
    people: list[Any] = []


class _LayersForm(_Part):
    source: list[Any] | None = None


class _SideCarForm(_Part):
    options: dict[str, Any]
    keep_kind: list[Any] | None = None
    layers: _LayersForm | None = None
    settings: dict[str, Any] = {}
    edits: list[Any] = []
    damage: list[Any] = []


class _PhotoForm(_SideCarForm):
    size: Size
    faces: list[_FaceForm]
    objects: list[_ObjectForm] = []
    possible_faces: list[_PlaceForm] = []
    gate_threshold: float | None = None


class _FilmForm(_SideCarForm):
    size: Size | None
    frames: NonNegativeInt
    tracks: NonNegativeInt
    people: NonNegativeInt
    masked_people: NonNegativeInt = 0
    faces_by_action: dict[str, NonNegativeInt]
    objects: dict[str, _ObjectsForm] = {}
    exemptions: list[_ExemptionForm] = []
    review: list[_MomentForm] = []
    check: _CheckForm | None


def fault_of(data: Mapping[str, Any]) -> str:
    """The first fault in the form of a side-car, a phrase; "" where it is sound."""
    form: type[_SideCarForm] = _FilmForm if data["kind"] == "film" else _PhotoForm
    try:
        form.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"it is not as docs/sidecar.schema.json says: {place}: {first['msg']}"
    return ""
