"""Settings in YAML: read, overridden, checked; whatever is wrong is one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ficgan import configs
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.yaml_settings import check, hint, override, read_tree


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Wheel(_Strict):
    radius: float = 1.0
    spare: Wheel | None = None


class Engine(_Strict):
    power: int = Field(80, ge=1)
    fuel: Literal["petrol", "diesel"] = "petrol"
    turbo: bool = False

    @field_validator("fuel", mode="before")
    @classmethod
    def _burns(cls, value: Any) -> Any:
        if value == "water from SECRET":
            raise ValueError("water does not burn")
        return value


class Car(_Strict):
    name: str
    start: int = Field(0, alias="from")
    engine: Engine = Engine()
    trailer: Engine | None = None
    wheels: list[Wheel] = []
    doors: dict[int, Wheel] = {}


def said(tree: Any, error: type[FicganError] = UsageError, see: str = "") -> str:
    with pytest.raises(error) as caught:
        check(Car, tree, where="car.yaml", error=error, see=see)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("car.yaml: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("tree", "wrong", "meant"),
    [
        ({"nmae": "a"}, "nmae", "name"),
        ({"form": 3}, "form", "from"),
        ({"engin": {}}, "engin", "engine"),
        ({"engine": {"pwoer": 3}}, "engine.pwoer", "engine.power"),
        ({"trailer": {"pwoer": 3}}, "trailer.pwoer", "trailer.power"),
        ({"wheels": [{}, {"radios": 3}]}, "wheels.1.radios", "wheels.1.radius"),
        ({"wheels": [{"spare": {"radios": 3}}]}, "wheels.0.spare.radios", "wheels.0.spare.radius"),
        ({"doors": {"4": {"radios": 3}}}, "doors.4.radios", "doors.4.radius"),
        ({"turbo": True}, "turbo", "engine.turbo"),  # in another section
        ({"engine": {"radius": 1}}, "engine.radius", "wheels.N.radius"),
    ],
)
def test_the_nearest_key_is_told_with_its_place(tree: dict[str, Any], wrong: str, meant: str) -> None:
    assert said({"name": "a", **tree}) == f"car.yaml: unknown key {wrong!r}; did you mean {meant!r}?"


def test_without_a_near_key_those_of_the_section_are_listed() -> None:
    assert said({"name": "a", "engine": {"zzz": 1}}).endswith("'engine.zzz'; there are power, fuel, turbo")
    assert said({"name": "a", "engine": {"zzz": 1}}, see="docs/cars.md").endswith("'engine.zzz'; see docs/cars.md")


def test_a_misspelt_key_is_told_before_the_missing_one() -> None:
    assert "unknown key 'nmae'" in said({"engine": {"power": 0}, "nmae": "a"})
    assert said({}) == "car.yaml: name is missing; add it"
    assert said({}, see="docs/cars.md") == "car.yaml: name is missing; see docs/cars.md"


def test_values_are_shown_unless_they_may_be_a_secret() -> None:
    assert said({"name": "a", "engine": {"power": 0}}).endswith("(got 0)")
    assert said({"name": "a", "engine": {"power": "many"}}).endswith("(got 'many')")
    assert said({"name": "a", "engine": {"fuel": "tea"}}).endswith("(got 'tea')")
    assert len(said({"name": "a", "engine": {"power": "y" * 500}})) < 200
    for tree in ({"engine": {"fuel": "water from SECRET"}}, {"engine": "SECRET"}, {"wheels": "SECRET"}):
        assert "SECRET" not in said({"name": "a", **tree})
    assert said([1]).startswith("car.yaml: Input should be")
    assert said({"name": "a", 3: 4}).startswith("car.yaml: 3: ")


def test_the_error_is_of_the_kind_asked_for() -> None:
    assert "doors.one: " in said({"name": "a", "doors": {"one": {}}}, InputError)
    assert check(Car, {"name": "a", "from": 2}, where="there").start == 2


TREE = {"a": 1, "b": {"c": 2, "d": None}}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], TREE),
        (["a=2", "a=3"], {**TREE, "a": 3}),
        (["b.c=x"], {"a": 1, "b": {"c": "x", "d": None}}),
        (["b.d.e=[1, 2]"], {"a": 1, "b": {"c": 2, "d": {"e": [1, 2]}}}),
        (["new.deep.key="], {**TREE, "new": {"deep": {"key": None}}}),
        ([" a =k=v"], {**TREE, "a": "k=v"}),
        (["b={c: 5}", "b.d=6"], {"a": 1, "b": {"c": 5, "d": 6}}),
    ],
)
def test_overrides(texts: Sequence[str], expected: dict[str, Any]) -> None:
    given = {"a": 1, "b": {"c": 2, "d": None}}
    assert override(given, texts, example="a=1") == expected
    assert given == TREE


def test_sections_that_are_one_by_an_alias_are_changed_apart() -> None:
    tree = yaml.safe_load("x: &it {v: 1}\ny: *it\n")
    assert override(tree, ["x.v=2"], example="a=1") == {"x": {"v": 2}, "y": {"v": 1}}


def test_short_forms_are_opened_on_the_way() -> None:
    def opened(place: str, value: Any) -> Any:
        return {"name": value} if place == "b.short" else value

    tree = {"b": {"short": "it"}, "short": "it"}
    assert override(tree, ["b.short.x=1"], example="", opened=opened)["b"] == {"short": {"name": "it", "x": 1}}
    with pytest.raises(UsageError, match=r"override 'short.x': 'short' is a value, not a section; write short=…"):
        override(tree, ["short.x=1"], example="", opened=opened)


@pytest.mark.parametrize("text", ["a", "=1", ".a=1", "a..b=1", "a.=1", "", "="])
def test_overrides_of_another_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not of the form key=value, such as epochs=5"):
        override({}, [text], example="epochs=5")


UNREADABLE = [
    "[1",
    "{a",
    "'x",
    "@x",
    "a: b: c",
    "*x",
    "!!int a",
    "!!bool x",
    "!!timestamp x",
    "0x_",
    "2024-99-01",
    "\x00",
    "\udcff",
    "!!python/name:os.system x",
    "{[1]: 2}",
    "[" * 5000,
]


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: ascii(value)[:16])
def test_a_value_that_is_no_yaml_is_one_sentence(value: str) -> None:
    with pytest.raises(UsageError, match=r"override 'a.b': the value is not valid YAML \(.+\); close") as caught:
        override({}, [f"a.b={value}"], example="a=1")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@settings(derandomize=True)
@given(st.text(alphabet="ab=.[]{}:,'\"&*!#|>%@-?0x_ \n\t", max_size=14))
def test_any_text_is_an_override_or_an_error_of_ours(text: str) -> None:
    try:
        assert isinstance(override({"a": {"b": [1]}}, [text], example="a=1"), dict)
    except UsageError as error:
        assert "override" in str(error)


def test_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    for text, tree in (("a: {b: 1}\n", {"a": {"b": 1}}), ("", {}), ("# nothing\n", {}), ("{}", {})):
        file.write_text(text)
        assert read_tree(file) == read_tree(str(file), kind="attack") == tree


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a: [1\nb: 2", r"mine.yaml is not valid YAML \(line 2, column 2: .*\); mend it"),
        (b"- 1\n", "holds no key: value pairs"),
        (b"[]", "holds no key: value pairs"),
        (b"text", "holds no key: value pairs"),
        (b"a: 2024-99-01", r"not valid YAML \(a date"),
        (b"a: \xff", r"cannot be read \(not UTF-8 text\)"),
        (b"a: \x01", r"not valid YAML \(character 4: "),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=told) as caught:
        read_tree(file)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for kind in (None, "attack"):
        with pytest.raises(UsageError, match=r"none.yaml cannot be read \(No such file"):
            read_tree(tmp_path / "none.yaml", kind=kind)
    with pytest.raises(UsageError, match="cannot be read"):
        read_tree(tmp_path)
    with pytest.raises(UsageError, match="tiny cannot be read"):
        read_tree("tiny")


@pytest.mark.parametrize("kind", ["", "eval", "attack"])
def test_packaged_configurations_have_names(kind: str) -> None:
    for name in configs.names(kind):
        assert read_tree(name, kind=kind) == yaml.safe_load(configs.read(name, kind))


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"named 'autoencodr64', and no such file; did you mean autoencoder64\?"):
        read_tree("autoencodr64", kind="attack")
    with pytest.raises(UsageError, match="there are pointcloud, pointcloud-small"):
        read_tree("quick", kind="eval", prefix="pointcloud")


def test_hints() -> None:
    assert hint("blu", ["blur", "solid"]) == "did you mean blur?"
    assert hint("xyz", {"blur": 1, "solid": 2}) == "there are blur, solid"
