"""Settings in YAML (in `configs/` or anywhere), overridden by `dotted.key=value`; all numbers of a model's training.

Every problem is one sentence. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ficgan import configs
from ficgan.errors import FicganError, UsageError, hint, reason

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

# PyYAML's own errors, and what it lets through: ValueError for 2024-99-01, AttributeError for !!timestamp x, …
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def read_tree(source: str | Path, *, kind: str | None = None, prefix: str = "", see: str = "") -> Tree:
    """The sections of a YAML file; an empty file has none.

    `source` is a path, or with `kind` (see `ficgan.configs.names`) the name, which begins with `prefix`, of a
    configuration that comes with the package. `see` names a page of the documentation.
    """
    place = str(source)
    names = [] if kind is None else [name for name in configs.names(kind) if name.startswith(prefix)]
    if place in names:
        text = configs.read(place, kind or "")
    elif kind is None or "/" in place or place.endswith((".yaml", ".yml")) or Path(source).is_file():
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{place} cannot be read ({reason(error)}); name a YAML file") from None
    else:
        raise UsageError(f"there is no configuration named {place!r}, and no such file; {hint(place, names)}")
    try:
        tree = yaml.safe_load(text)
    except _UNREADABLE as error:
        raise UsageError(f"{place} is not valid YAML ({_reason(error)}); mend it") from None
    if not isinstance(tree, dict | None):
        raise UsageError(f"{place} holds no key: value pairs; {f'see {see}' if see else 'write some'}")
    return tree or {}


def override(
    tree: Tree, overrides: Iterable[str], *, example: str, opened: Callable[[str, Any], Any] | None = None
) -> Tree:
    """A copy of the tree with other values; sections that are not there are made.

    Args:
        overrides: "dotted.key=value" texts, values as in YAML; a later one wins.
        example: such a text, for the error message, which shows no value: it may be a key of an anonymiser.
        opened: called with the dotted place and the value of each section on the way; gives what stands there in place
            of a short form.
    """
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise UsageError(f"override {text!r} is not of the form key=value, such as {example}")
        try:
            given = yaml.safe_load(value)
        except _UNREADABLE as error:
            why = f"the value is not valid YAML ({_reason(error)}); close its brackets or quote it"
            raise UsageError(f"override {key!r}: {why}") from None
        tree = _with(tree, parts, given, 0, opened)
    return tree


def check(model: type[M], tree: Any, *, where: str, see: str = "", error: type[FicganError] = UsageError) -> M:
    """A tree as a model; of several problems a misspelt key is named before the one that is missing because of it.

    The model forbids unknown keys; it may hold models, optional ones, lists and dictionaries of them. `where` is what
    the message calls the tree, `see` a page of the documentation.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as failed:
        first = min(failed.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    place = [part for part in first["loc"] if part != "[key]"]
    path = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        raise error(f"{where}: unknown key {path!r}; {_meant(model, place, see)}")
    if first["type"] == "missing":
        raise error(f"{where}: {path} is missing; {f'see {see}' if see else 'add it'}")
    problem = first["msg"].removeprefix("Value error, ") + _given(first["type"], first["input"])
    raise error(f"{where}: {path}: {problem}" if path else f"{where}: {problem}")


def _reason(error: Exception) -> str:
    """What is wrong in a YAML text, on one line and without the text itself."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return "a character, date, number or tag that cannot be"


def _with(node: Tree, parts: Sequence[str], value: Any, depth: int, opened: Callable[[str, Any], Any] | None) -> Tree:
    part = parts[depth]
    if depth == len(parts) - 1:
        return {**node, part: value}
    place, below = ".".join(parts[: depth + 1]), node.get(part)
    below = opened(place, below) if opened else below
    if not isinstance(below, dict | None):
        raise UsageError(f"override {'.'.join(parts)!r}: {part!r} is a value, not a section; write {place}=…")
    return {**node, part: _with(below or {}, parts, value, depth + 1, opened)}


def _given(kind: str, value: Any) -> str:
    """What stood there, unless it is a text that was not meant as a number or a choice: it may hold a key."""
    plain = value is None or isinstance(value, bool | int | float)
    if not (plain or (isinstance(value, str) and kind.endswith(("_parsing", "literal_error")))):
        return ""
    return f" (got {repr(value)[:60]})"


def _meant(model: type[BaseModel], place: Sequence[int | str], see: str) -> str:
    """What to write in place of an unknown key: one that looks alike, best with its section."""
    keys = list(_keys(model))
    by_last = {key.rpartition(".")[2]: key for key in reversed(keys)}
    wrong = ".".join(str(part) for part in place if not str(part).isdigit())
    near = difflib.get_close_matches(wrong, keys, n=1, cutoff=0.8)
    near += [by_last[last] for last in difflib.get_close_matches(str(place[-1]), by_last, n=1)]
    if near:
        return f"did you mean {near[0]!r}?"
    return f"see {see}" if see else f"there are {', '.join(key for key in keys if '.' not in key)}"


def _keys(kind: Any, above: str = "", outer: tuple[Any, ...] = ()) -> Iterator[str]:
    """The dotted keys of a model, or of those in a type; numbers of lists and keys of dictionaries are left out."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        for inner in typing.get_args(kind):
            yield from _keys(inner, above, outer)
    elif kind not in outer:
        for attribute, field in kind.model_fields.items():
            yield (key := above + (field.alias or attribute))
            yield from _keys(field.annotation, f"{key}.", (*outer, kind))


# -- a model and its training ------------------------------------------------------------------------------------------


class _ConfigPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FrameNetworkConfig(_ConfigPart):
    """What a network in the canonical frame takes from the appearance model that it refines."""

    appearance: str = "embedded"  # Path of a file of `ficgan fit-appearance`; "embedded" is the one in the package
    # Identity coefficients of shape and texture, and the attributes that stay; the light is left out.
    code_dim: int = Field(158, ge=1)
    moment_dim: int = Field(18, ge=1)  # Numbers that say the moment, see `ficgan.frame.moment_vector`
    shape_dim: int = Field(20, ge=1)  # Identity coefficients of the shape, which the network may move
    shape_limit: float = Field(1.5, ge=0)  # Standard deviations by which it may move each of them
    # New identities vary in what V tells people apart by, so many times as real people do; 0: in everything alike.
    telling: float = Field(1.75, ge=0)


class DetailConfig(_ConfigPart):
    """A network that fits lent detail to doubled textures of the frame, see `ficgan.models.DetailNetwork`."""

    appearance: str = "embedded"  # As in `FrameNetworkConfig`; "embedded" brings the bank in the package along
    bank: str = "embedded"  # Path of the bank whose identities are drawn
    channels: int = Field(64, ge=4, le=1024)  # At half the frame's size
    fine_channels: int = Field(24, ge=4, le=1024)  # At the frame's size
    blocks: int = Field(4, ge=1, le=64)
    draws: int = Field(2, ge=1, le=64)  # Identities that are drawn in the place of each face
    degraded: float = Field(0.35, ge=0, le=1)  # Share of the inputs that are photos made unsharp
    # Photos with more fine detail (see `Fineness`) are left out: pictures made crunchy teach cracks in skin.
    finest: float = Field(0.022, gt=0)
    # Share that are drawn faces: no photo shows what their detail would be. The rest are reconstructions.
    hidden: float = Field(0.35, ge=0, le=1)


class ModelConfig(_ConfigPart):
    """Encoder, mapping network and generator (paper, "Overall Framework")."""

    resolution: int = 256
    id_dim: int = Field(512, ge=1, le=16384)
    w_dim: int = Field(512, ge=1, le=16384)
    spatial_channels: int = Field(512, ge=1, le=16384)  # C of z_non [B,C,4,4]; few leak less identity past the loss
    spatial_code: Literal["encoded", "learned-constant"] = "encoded"  # The latter: Table 2 "w/o spatial code"
    spatial_norm: bool = False  # Normalise z_non to unit RMS, so that its noise has a meaning
    spatial_noise: float = Field(0.0, ge=0)  # σ of Gaussian noise on z_non while training: a bottleneck
    channel_base: int = 32768
    channel_max: int = 512
    mapping_layers: int = Field(8, ge=1, le=64)
    mapping_lr_multiplier: float = 0.01
    modulation: Literal["adain", "demodulate"] = "adain"
    frame: FrameNetworkConfig | None = None  # Set: works in the canonical frame and adds to the linear model
    detail: DetailConfig | None = None  # Set: adds detail to textures, which are doubled to `resolution`

    @model_validator(mode="after")
    def _power_of_two(self) -> ModelConfig:
        if not 8 <= self.resolution <= 4096 or self.resolution & (self.resolution - 1):
            raise ValueError(f"resolution {self.resolution} is not a power of two from 8 to 4096")
        if not self.resolution <= self.channel_base <= 2**20 or not 1 <= self.channel_max <= 2**14:
            raise ValueError(f"channel_base {self.channel_base} and channel_max {self.channel_max} give no channels")
        fields = type(self).model_fields
        given = [name for name in fields if name[:8] == "spatial_" and getattr(self, name) != fields[name].default]
        if self.frame is not None and given:
            raise ValueError(f"{given[0]} is for networks outside the frame, where z_non is the moment; leave it out")
        return self

    @property
    def num_layers(self) -> int:
        """L = 2·(log2(resolution) − 2) style layers: two for each doubling from 4×4."""
        return 2 * (self.resolution.bit_length() - 3)

    def channels(self, resolution: int) -> int:
        """Feature channels at a resolution, the same for encoder and generator."""
        return min(self.channel_base // resolution, self.channel_max)


class DiscriminatorConfig(_ConfigPart):
    """Residual discriminator."""

    channel_base: int = 32768
    channel_max: int = 512
    minibatch_std_group: int = Field(4, ge=0)  # Of the minibatch standard deviation layer; 0: there is none
    taps: tuple[int, ...] = ()  # Channels of V's feature maps that are judged, finest first; in the frame only

    def channels(self, resolution: int) -> int:
        return min(self.channel_base // resolution, self.channel_max)


class LossConfig(_ConfigPart):
    """Weights of L = λ1·L_rec + λ2·(L_pos + L_neg) + λ3·(L_adv_rec + L_adv_mix), and what the paper does not have."""

    reconstruction: float = 1.0  # λ1
    # Means over pixels, with which the paper's weights balance, or the norm of a whole image, as eq. 3 is written
    reconstruction_norm: Literal["l2-norm", "l2-mean", "l1-mean"] = "l2-mean"
    verification: float = 0.01  # λ2
    positive: float = 1.0  # Factor of L_pos inside λ2; 0 is the ablation "w/o positive loss"
    negative: float = 1.0  # Factor of L_neg inside λ2; 0 is the ablation "w/o negative loss"
    negative_form: Literal["plain", "hinge"] = "plain"
    negative_margin: float = 0.05  # Floor m of the hinge max(0, cos − max(m, cos(V(x_s), V(x_t))))
    verification_ramp_kimg: tuple[float, float] = (0.0, 0.0)  # λ2 grows linearly from 0 between these two
    adversarial: float = 0.05  # λ3
    adversarial_start_kimg: float = 0.0  # No discriminator before
    adversarial_ramp_kimg: float = 0.0  # From there its weight grows to λ3 over so many
    adversarial_rec: float = 1.0
    adversarial_mix: float = 1.0
    perceptual: float = 0.0  # L1 between early feature maps of V for x and its reconstruction
    structure: float = 0.0  # L1 between x_s and x_mix, averaged to `structure_size`²: keeps pose, light, surroundings
    structure_size: int = 8
    # In the frame only, down to `manifold`, and `shape`:
    keep: float = 0.0  # Squared error of expression and attributes as linear maps read them from the mix
    # Squared difference of a mix from the kind that it shall have (ethnic group, gender, age), read from V by a
    # linear map. `kind_gain`: how clearly a k-same draw shall show it; 1 is as clearly as the mean of such people.
    kind: float = 0.0
    kind_gain: float = Field(1.0, gt=0)
    colour: float = 0.0  # Mean square of the mixes' difference in colour, not in luminance, from the linear model's
    # Side of an image that shows all that V and D may change in a mix; finer detail follows from reconstruction
    # alone. 0: they may change all.
    coarse: int = Field(0, ge=0)
    code: float = 0.0  # Mean square by which E's part of the identity code differs from what V sees of the source
    excess: float = 0.0  # Mean by which detail of a mix finer than `coarse` is stronger than its reconstruction's
    # Mean difference of the mixes' textures from the linear model's, but for what its own components can say.
    anchor: float = 0.0
    # Mean of what is drawn beside the face: unseen, it takes up the range of an exported network's numbers.
    beside: float = 0.0
    # Mean square by which the mixes change the linear model's components by more than one standard deviation.
    manifold: float = 0.0
    # For the detail network only, whose `reconstruction` is of unsharp photos, over 2×2 pixels, and whose `structure`
    # averages over 4×4: mean difference of the logarithm of the local strength of detail from the photo's.
    detail: float = 0.0
    shape: float = 0.0  # Mean square of what the network adds to the shape, in standard deviations
    r1_gamma: float = 10.0
    r1_interval: int = Field(16, ge=1)  # Lazy regularisation: R1 at every n-th discriminator step, weighted n times


class SwapConfig(_ConfigPart):
    """Where the identity of x_mix comes from."""

    # Share of the batch that is mixed towards a mean of codes (no L_pos), as inference does with w_m.
    mean_fraction: float = Field(0.0, ge=0, le=1)
    mean_of: tuple[int, int] = (4, 64)
    crossover: float = Field(0.0, ge=0, le=1)  # Share whose source code stays in layers 1..i for a random i


class VerifierConfig(_ConfigPart):
    """The frozen face-verification network V."""

    # `sphereface20:PATH`, `onnx:PATH`, or `untrained` (random weights, for tests of the software only).
    spec: str = "sphereface20:sphereface20.safetensors"
    augment: bool = False  # Random geometry, blur, noise, colour before V, so that G does not fool it with texture


class AlignmentConfig(_ConfigPart):
    """How faces lie in the training crops; becomes a property of the checkpoint."""

    kind: Literal["template", "ffhq", "canonical"] = "template"
    eye_distance: float = 0.37
    eye_y: float = 0.31


class AugmentConfig(_ConfigPart):
    """Augmentation of what the discriminator sees."""

    flip: bool = True
    adaptive: bool = False
    target: float = 0.6  # Wanted r_t = E[sign D(x)]; p rises above it and falls below
    speed_kimg: float = 500.0  # Images (in thousands) for p to go from 0 to 1
    start_kimg: float = 0.0
    interval: int = Field(4, ge=1)  # Discriminator steps between two changes of p
    max_p: float = 0.8


class OptimizerConfig(_ConfigPart):
    """Adam for (E, mapping, G) and for D."""

    lr: float = 0.002
    lr_discriminator: float | None = None  # None: the same as `lr`
    betas: tuple[float, float] = (0.0, 0.99)
    eps: float = 1e-8
    batch: int = Field(16, ge=2)  # Images per step over all processes and accumulation rounds
    accumulate: int = Field(1, ge=1)
    warmup_steps: int = 0


class EmaConfig(_ConfigPart):
    half_life_kimg: float = 10.0
    ramp: float = 0.05  # Half-life is at most this share of the images seen so far


class ScheduleConfig(_ConfigPart):
    total_kimg: float = 6400.0
    tick_kimg: float = 4.0
    snapshot_kimg: float = 200.0
    checkpoint_kimg: float = 50.0
    checkpoint_minutes: float = 10.0  # A checkpoint is written after so many minutes even if fewer images were seen


class Config(_ConfigPart):
    """All of a training run."""

    name: str = "ficgan"
    model: ModelConfig = ModelConfig()
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    loss: LossConfig = LossConfig()
    swap: SwapConfig = SwapConfig()
    verifier: VerifierConfig = VerifierConfig()
    alignment: AlignmentConfig = AlignmentConfig()
    augment: AugmentConfig = AugmentConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    ema: EmaConfig = EmaConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    seed: int = 0
    data_licence: str = ""  # Name and licence of the training data; stands in the checkpoint and in every audit


def load_config(name_or_path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """A configuration from `configs/` (such as "tiny") or a YAML file, with "dotted.key=value" overrides, checked."""
    tree = override(read_tree(name_or_path, kind=""), overrides, example="loss.positive=0")
    return check(Config, tree, where=str(name_or_path))
