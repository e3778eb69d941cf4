"""Things chosen by name: made from texts or numbers, checked, and their secrets kept out of sight."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.registry import Parametrised, Registry, param, parse_spec

TOOLS: Registry[Parametrised] = Registry("tool")


@TOOLS.add
@dataclass(frozen=True)
class Brush(Parametrised):
    """Every kind of parameter there is."""

    size: int = param(8, "width, pixels", low=1, high=64)
    gain: float = param(1.0, "factor", low=0.0)
    shade: float = param(0.0, "factor", high=5.0)
    offset: float = param(0.0, "grey levels")
    wet: bool = param(False, "whether it is wet")
    tip: str = param("round", "shape", choices=("round", "flat"))
    mode: Literal["soft", "hard"] = param("soft", "edge", choices=("soft", "hard"))
    limit: int | None = param(None, "most strokes", low=1)
    mean_of: int | str = param(2, "a number or 'all'")
    key: str = param("", "secret", secret=True)
    pin: int = param(1, "secret number", low=1, high=9999, secret=True)
    seed: int = 0

    name: ClassVar[str] = "brush"


@TOOLS.add
@dataclass(frozen=True)
class Roller(Parametrised):
    """No parameters, and one thing that must be given."""

    handle: object
    spare: list[int] = field(default_factory=list)
    worn: int = field(default=0, init=False)

    name: ClassVar[str] = "roller"


def make(**given: Any) -> Brush:
    tool = TOOLS.make("brush", **given)
    assert isinstance(tool, Brush)
    return tool


def test_the_registry_lists_what_was_added_in_order() -> None:
    assert list(TOOLS) == ["brush", "roller"]
    assert "brush" in TOOLS and "broom" not in TOOLS and 3 not in TOOLS
    assert TOOLS["brush"] is Brush
    assert TOOLS.make("brush") == Brush()


def test_a_name_is_taken_once() -> None:
    tools: Registry[Parametrised] = Registry("tool")
    tools.add(Brush)
    tools.add(Brush)  # the same class again, as after a reload

    @dataclass(frozen=True)
    class Other(Parametrised):
        name: ClassVar[str] = "brush"

    with pytest.raises(ValueError, match="two tools are called brush"):
        tools.add(Other)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"size": "12"}, {"size": 12}),
        ({"size": 12}, {"size": 12}),
        ({"size": 12.0}, {"size": 12}),
        ({"size": np.int16(12)}, {"size": 12}),
        ({"size": np.float32(12)}, {"size": 12}),
        ({"gain": "2.5"}, {"gain": 2.5}),
        ({"gain": "1e-3"}, {"gain": 0.001}),
        ({"gain": 3}, {"gain": 3.0}),
        ({"gain": np.float32(0.5)}, {"gain": 0.5}),
        ({"gain": Fraction(1, 4)}, {"gain": 0.25}),
        ({"wet": "Yes"}, {"wet": True}),
        ({"wet": "0"}, {"wet": False}),
        ({"wet": True}, {"wet": True}),
        ({"tip": "flat"}, {"tip": "flat"}),
        ({"mode": "hard"}, {"mode": "hard"}),
        ({"limit": "3"}, {"limit": 3}),
        ({"limit": None}, {"limit": None}),
        ({"mean_of": "all"}, {"mean_of": "all"}),
        ({"mean-of": "7"}, {"mean_of": 7}),
        ({"seed": "5"}, {"seed": 5}),
        ({"key": "1234"}, {"key": "1234"}),
    ],
)
def test_values_become_the_parameter_s_type(given: dict[str, Any], expected: dict[str, Any]) -> None:
    tool = make(**given)
    for name, value in expected.items():
        got = getattr(tool, name)
        assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"size": "large"}, "size is 'large', and must be a whole number"),
        ({"size": "2.5"}, "size is '2.5', and must be a whole number"),
        ({"size": 2.5}, "size is 2.5, and must be a whole number"),
        ({"size": True}, "size is True, and must be a whole number"),
        ({"size": np.True_}, "size is True, and must be a whole number"),
        ({"size": None}, "size is None, and must be a whole number"),
        ({"size": [3]}, "must be a whole number"),
        ({"size": float("inf")}, "size is inf, and must be a whole number"),
        ({"size": 0}, "size is 0; give from 1 to 64"),
        ({"size": "65"}, "size is 65; give from 1 to 64"),
        ({"size": 10**400}, "give from 1 to 64"),
        ({"gain": -0.1}, "gain is -0.1; give at least 0"),
        ({"gain": "nan"}, "gain is nan; give at least 0"),
        ({"gain": 10**400}, "must be a number"),
        ({"gain": True}, "gain is True, and must be a number"),
        ({"shade": 5.5}, "shade is 5.5; give at most 5"),
        ({"offset": "inf"}, "offset is inf; give a finite number"),
        ({"wet": "damp"}, "wet is 'damp', and must be true or false"),
        ({"wet": 1}, "wet is 1, and must be true or false"),
        ({"tip": "square"}, "tip is 'square'; use one of round, flat"),
        ({"tip": 3}, "tip is 3, and must be a text"),
        ({"mode": "firm"}, "mode is 'firm'; use one of soft, hard"),
        ({"limit": "0"}, "limit is 0; give at least 1"),
        ({"limit": "some"}, "limit is 'some', and must be a whole number"),
        ({"limit": 1.5}, "limit is 1.5, and must be a whole number"),
        ({"mean-of": 1, "mean_of": 2}, "mean_of is given twice"),
        ({"sise": 3}, "brush has no parameter 'sise'; did you mean size"),
        ({"xyzzy": 3}, "brush has no parameter 'xyzzy'; it has gain, key, limit"),
    ],
)
def test_what_cannot_work_is_said(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        make(**given)
    assert says in str(error.value)


def test_unknown_names_lead_to_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no tool 'brsh'; did you mean brush\?"):
        TOOLS.make("brsh")
    with pytest.raises(UsageError, match="no tool 'qqq'; there are brush, roller"):
        TOOLS["qqq"]


def test_things_of_no_plain_type_go_through_and_must_be_there() -> None:
    handle = object()
    tool = TOOLS.make("roller", handle=handle)
    assert isinstance(tool, Roller) and tool.handle is handle and tool.settings() == {}
    with pytest.raises(UsageError, match="roller needs handle"):
        TOOLS.make("roller")
    with pytest.raises(UsageError, match="no parameter 'worn'"):
        TOOLS.make("roller", handle=handle, worn=1)


def test_bounds_hold_however_it_is_made() -> None:
    with pytest.raises(UsageError, match="brush: size is 0; give from 1 to 64"):
        Brush(size=0)
    assert Brush(size=1).size == 1 and Brush(size=64).size == 64


def test_settings_are_the_parameters_without_secrets() -> None:
    settings = make(key="hush", pin=77, size=3).settings()
    assert json.loads(json.dumps(settings)) == settings
    assert set(settings) == {"size", "gain", "shade", "offset", "wet", "tip", "mode", "limit", "mean_of"}
    assert settings["size"] == 3


def test_secrets_are_shown_nowhere() -> None:
    tool = make(key="hush", pin=7777)
    assert "hush" not in repr(tool) and "7777" not in repr(tool) and "hush" not in str(tool)
    assert "size=8" in repr(tool)
    assert tool != make(key="other", pin=7777)  # and yet they count
    for bad in ({"pin": 54321}, {"pin": "54321x"}, {"key": 54321}):
        with pytest.raises(UsageError) as error:
            make(**bad)
        assert "54321" not in str(error.value) and next(iter(bad)) in str(error.value)
    with pytest.raises(UsageError) as error:
        Brush(pin=54321)
    assert "54321" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blur", ("blur", {})),
        ("blur:", ("blur", {})),
        (" blur : kernel = 29 , seed=1,", ("blur", {"kernel": "29", "seed": "1"})),
        ("relocation:key=a=b:c", ("relocation", {"key": "a=b:c"})),
    ],
)
def test_specs_are_read(text: str, expected: tuple[str, dict[str, str]]) -> None:
    assert parse_spec(text) == expected


@pytest.mark.parametrize("text", ["", ":kernel=3", " ", "blur:kernel", "blur:=3", "blur:kernel=", "blur:k=1,k=2"])
def test_wrong_specs_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_spec(text)


def test_a_wrong_spec_shows_no_key() -> None:
    with pytest.raises(UsageError) as error:
        parse_spec("permutation:key=hush,hushhush")
    assert "hush" not in str(error.value)


words = st.text(st.characters(codec="utf-8", exclude_characters=",:= \t\n", exclude_categories=("Z", "C")), min_size=1)


@given(words, st.dictionaries(words, words))
def test_specs_come_back_as_they_were_written(name: str, given: dict[str, str]) -> None:
    text = name + ":" + ",".join(f"{key}={value}" for key, value in given.items())
    assert parse_spec(text) == (name, given)


@given(st.integers(1, 64), st.floats(0, 1e300), st.booleans())
def test_texts_and_values_make_the_same(size: int, gain: float, wet: bool) -> None:
    assert make(size=str(size), gain=repr(gain), wet=str(wet)) == make(size=size, gain=gain, wet=wet)
