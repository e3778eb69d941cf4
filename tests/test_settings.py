"""Settings: YAML with overrides, checked models, things made by name; whatever is wrong is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from ficgan import configs
from ficgan.config import Config, check, hint, load_config, override, read_tree
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.registry import Parametrised, Registry, param, parse_spec


def refused(call: Callable[[], object], says: str = "", error: type[FicganError] = UsageError) -> None:
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


# --- YAML -------------------------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Wheel(_Strict):
    radius: float = 1.0
    spare: Wheel | None = None


class Engine(_Strict):
    power: int = Field(80, ge=1)
    fuel: Literal["petrol", "diesel"] = "petrol"


class Car(_Strict):
    name: str
    start: int = Field(0, alias="from")
    engine: Engine = Engine()
    wheels: list[Wheel] = []
    doors: dict[int, Wheel] = {}


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"nmae": "a"}, "'nmae'; did you mean 'name'"),
        ({"form": 3}, "'from'"),
        ({"engine": {"pwoer": 3}}, "'engine.pwoer'; did you mean 'engine.power'"),
        ({"wheels": [{}, {"radios": 3}]}, "'wheels.1.radios'; did you mean 'wheels.radius'"),
        ({"doors": {"4": {"radios": 3}}}, "'doors.radius'"),
        ({"fuel": "diesel"}, "'engine.fuel'"),
        ({"xyzzy": 1}, "there are name, from"),
        ({}, "name is missing"),
        ({"name": "a", "engine": {"power": "much"}}, "engine.power"),
        ({"name": "a", "engine": {"power": 0}}, "(got 0)"),
    ],
)
def test_what_a_model_does_not_hold_is_named(tree: dict[str, Any], says: str) -> None:
    refused(lambda: check(Car, tree, where="car.yaml"), says)
    refused(lambda: check(Car, tree, where="car.yaml", error=InputError), "car.yaml: ", InputError)


def test_overrides() -> None:
    tree = {"a": 1, "b": {"c": 2, "d": None}}
    texts = ["a=2", " a =k=v", "b.c=x", "b.d.e=[1, 2]", "new.deep.key="]
    wanted = {"a": "k=v", "b": {"c": "x", "d": {"e": [1, 2]}}, "new": {"deep": {"key": None}}}
    assert override(tree, texts, example="") == wanted and tree["b"] == {"c": 2, "d": None}
    alias = yaml.safe_load("x: &it {v: 1}\ny: *it\n")
    assert override(alias, ["x.v=2"], example="") == {"x": {"v": 2}, "y": {"v": 1}}

    def opened(place: str, value: Any) -> Any:
        return {"name": value} if place == "b.short" else value

    made = override({"b": {"short": "it"}}, ["b.short.x=1"], example="", opened=opened)
    assert made["b"] == {"short": {"name": "it", "x": 1}}
    for text in ("a", "=1", ".a=1", "a..b=1", "", "a.x=1", "b.c=[1", "b.c='x", "b.c=2024-99-01", "b.c=\x00"):
        refused(lambda text=text: override(tree, [text], example="a=1"), "override")  # type: ignore[misc]


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text, tree in ((b"a: {b: 1}\n", {"a": {"b": 1}}), (b"", {}), (b"# nothing\n", {})):
        file.write_bytes(text)
        assert read_tree(file) == read_tree(str(file), kind="attack") == tree
    for content in (b"a: [1\nb: 2", b"- 1\n", b"text", b"a: 2024-99-01", b"a: \xff", b"a: \x01"):
        file.write_bytes(content)
        refused(lambda: read_tree(file), "mine.yaml")
    refused(lambda: read_tree(tmp_path / "none.yaml"), "none.yaml")
    refused(lambda: read_tree("autoencodr64", kind="attack"), "did you mean autoencoder64?")
    for kind in ("", "eval", "attack"):
        for name in configs.names(kind):
            assert read_tree(name, kind=kind) == yaml.safe_load(configs.read(name, kind))
    with pytest.raises(KeyError):
        configs.read("../pyproject")
    assert hint("blu", ["blur", "solid"]) == "did you mean blur?"


# --- configurations ---------------------------------------------------------------------------------------------------


def test_shipped_configurations_load() -> None:
    for name in configs.names():
        c = load_config(name)
        assert c.name == name and Config.model_validate_json(c.model_dump_json()) == c  # a run writes config.json
    c = load_config("tiny", ["loss.positive=0", "optimizer.betas=[0.5, 0.9]", "model.spatial_code=learned-constant"])
    assert c.loss.positive == 0 and c.optimizer.betas == (0.5, 0.9) and c.model.spatial_code == "learned-constant"
    with pytest.raises(ValueError, match="frozen"):
        Config().name = "other"  # type: ignore[misc]


def test_the_paper_to_the_letter() -> None:
    c = load_config("ffhq256-paper")
    assert (c.loss.reconstruction, c.loss.verification, c.loss.adversarial) == (1.0, 0.01, 0.05)
    assert c.loss.reconstruction_norm == "l2-mean"
    assert (c.optimizer.lr, c.optimizer.batch, c.schedule.total_kimg) == (0.002, 16, 16 * 400)
    assert (c.model.resolution, c.model.modulation, c.model.num_layers) == (256, "adain", 12)
    assert (c.loss.positive, c.loss.negative, c.loss.negative_form) == (1.0, 1.0, "plain")
    assert c.verifier.spec.startswith("sphereface20:") and c.alignment.kind == "ffhq"
    assert c.loss.perceptual == c.loss.structure == c.swap.mean_fraction == 0


@pytest.mark.parametrize(
    "text",
    ["loss.postive=0", "optimizer.batch=1", "optimizer.batch=many", "model.resolution=48", "model.modulation=film"],
)
def test_wrong_configurations_are_refused(text: str) -> None:
    refused(lambda: load_config("tiny", [text]), "tiny: ")
    refused(lambda: load_config("huge"), "tiny")


# --- things made by name ----------------------------------------------------------------------------------------------

TOOLS: Registry[Parametrised] = Registry("tool")


@TOOLS.add
@dataclass(frozen=True)
class Brush(Parametrised):
    """Every kind of parameter there is."""

    size: int = param(8, "width, pixels", low=1, high=64)
    gain: float = param(1.0, "factor", low=0.0)
    wet: bool = param(False, "whether it is wet")
    tip: str = param("round", "shape", choices=("round", "flat"))
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

    name: ClassVar[str] = "roller"


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("size", ["12", 12, 12.0, np.int16(12), np.float32(12)], 12),
        ("gain", ["0.25", "25e-2", np.float32(0.25), Fraction(1, 4)], 0.25),
        ("wet", ["Yes", "1", True], True),
        ("limit", ["3", 3], 3),
        ("mean-of", ["all"], "all"),
        ("mean_of", ["7"], 7),
        ("key", ["1234"], "1234"),
    ],
)
def test_values_become_the_type_of_the_parameter(name: str, values: list[Any], wanted: Any) -> None:
    for value in values:
        got = getattr(TOOLS.make("brush", **{name: value}), name.replace("-", "_"))
        assert got == wanted and type(got) is type(wanted)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("size", ["large", "2.5", 2.5, True, None, [3], float("inf"), 0, "65", 10**400]),
        ("gain", [-0.1, "nan", "inf", 10**400, True]),
        ("wet", ["damp", 1]),
        ("tip", ["square", 3]),
        ("limit", ["0", "some", 1.5]),
        ("sise", [3]),
    ],
)
def test_wrong_values_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        refused(lambda value=value: TOOLS.make("brush", **{name: value}), name)  # type: ignore[misc]


def test_names_and_secrets() -> None:
    assert list(TOOLS) == ["brush", "roller"] and TOOLS["brush"] is Brush and "broom" not in TOOLS
    refused(lambda: TOOLS["brusj"], "did you mean brush")
    refused(lambda: TOOLS.make("roller"), "needs handle")
    refused(lambda: Brush(size=100), "size")
    assert isinstance(TOOLS.make("roller", handle=Path()), Roller)
    tool = TOOLS.make("brush", key="hush", pin=77)
    assert "hush" not in repr(tool) and "77" not in repr(tool)
    assert tool.settings().keys() == {"size", "gain", "wet", "tip", "limit", "mean_of"}
    for wrong in ({"pin": 123456}, {"pin": "123456x"}):
        with pytest.raises(UsageError) as caught:
            TOOLS.make("brush", **wrong)
        assert "123456" not in str(caught.value)


def test_specs() -> None:
    assert parse_spec("blur") == ("blur", {}) and parse_spec("blur:k=29,seed=1") == ("blur", {"k": "29", "seed": "1"})
    for text in ("", ":k=1", "blur:k", "blur:=1", "blur:k=SECRET,k=2"):
        with pytest.raises(UsageError) as caught:
            parse_spec(text)
        assert "SECRET" not in str(caught.value)
