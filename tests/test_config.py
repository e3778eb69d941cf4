"""Configurations: the shipped ones load, mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ficgan import configs
from ficgan.config import Config, load_config
from ficgan.errors import UsageError


@pytest.mark.parametrize("name", configs.names())
def test_shipped_configurations_load(name: str) -> None:
    assert load_config(name).name == name


def test_the_paper_to_the_letter() -> None:
    c = load_config("ffhq256-paper")
    assert (c.loss.reconstruction, c.loss.verification, c.loss.adversarial) == (1.0, 0.01, 0.05)
    assert (c.optimizer.lr, c.optimizer.batch, c.schedule.total_kimg) == (0.002, 16, 16 * 400)
    assert (c.model.resolution, c.model.modulation, c.model.num_layers) == (256, "adain", 12)
    assert (c.loss.positive, c.loss.negative, c.loss.negative_form) == (1.0, 1.0, "plain")
    assert c.verifier.spec.startswith("sphereface20:") and c.alignment.kind == "ffhq"
    assert c.loss.perceptual == c.loss.feature_matching == c.loss.structure == c.swap.mean_fraction == 0


def test_overrides_are_yaml() -> None:
    c = load_config("tiny", ["loss.positive=0", "optimizer.betas=[0.5, 0.9]", "model.spatial_code=learned-constant"])
    assert c.loss.positive == 0 and c.optimizer.betas == (0.5, 0.9) and c.model.spatial_code == "learned-constant"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.postive=0", r"tiny: unknown key 'loss.postive'; did you mean 'loss.positive'\?"),
        ("optimiser.lr=1", "did you mean 'optimizer"),
        ("optimizer.batch=1", "tiny: optimizer.batch: "),
        ("optimizer.batch=many", r"tiny: optimizer.batch: .* \(got 'many'\)"),
        ("optimizer.batch", "not of the form key=value"),
        ("name.x=1", "'name' is a value, not a section"),
        ("optimizer.batch=[1", "override 'optimizer.batch': the value is not valid YAML"),
        ("model.resolution=48", "not a power of two"),
        ("model.modulation=film", "model.modulation"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_config("tiny", [override])
    assert "\n" not in str(caught.value)


def test_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"there are .*tiny"):
        load_config("huge")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(UsageError, match="cannot be read"):
        load_config(path)
    path.write_text("loss: [1")
    with pytest.raises(UsageError, match="not valid YAML"):
        load_config(path)
    path.write_text("- 1\n- 2\n")
    with pytest.raises(UsageError, match="no key: value"):
        load_config(path)
    path.write_text("name: mine\nloss: {verification: 0.5}\n")
    assert load_config(path).loss.verification == 0.5


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().name = "other"  # type: ignore[misc]
