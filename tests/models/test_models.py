"""The networks: shapes, modulation against an explicit loop, ablations, and what carries what."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from ficgan.config import DiscriminatorConfig, ModelConfig
from ficgan.losses import r1_penalty
from ficgan.models import FICGAN, Discriminator
from ficgan.models.ficgan import StyleLayer, minibatch_std


def small(**changes: object) -> ModelConfig:
    base: dict[str, object] = {
        "resolution": 32,
        "id_dim": 24,
        "w_dim": 20,
        "spatial_channels": 6,
        "channel_base": 256,
        "channel_max": 16,
        "mapping_layers": 2,
    }
    return ModelConfig(**{**base, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_the_paper_has_twelve_layers_and_its_sizes() -> None:
    config = ModelConfig()
    assert (config.resolution, config.num_layers, config.id_dim, config.spatial_channels) == (256, 12, 512, 512)
    assert ModelConfig(resolution=8).num_layers == 2


@pytest.mark.parametrize("modulation", ["adain", "demodulate"])
def test_every_layer_listens_to_its_own_code(modulation: str) -> None:
    model = FICGAN(small(modulation=modulation))
    w, z_non = torch.randn(1, model.num_layers, 20), torch.randn(1, 6, 4, 4)
    base = model.generator(w, z_non)
    for layer in range(model.num_layers):
        other = w.clone()
        other[:, layer] = torch.randn(20)
        assert (model.generator(other, z_non) - base).abs().max() > 1e-4, f"layer {layer + 1} ignores w"


@given(batch=st.integers(1, 3), cin=st.integers(1, 5), cout=st.integers(1, 5), size=st.integers(2, 6))
def test_demodulation_equals_scaled_and_normalised_kernels(batch: int, cin: int, cout: int, size: int) -> None:
    """Activations are scaled in the code; the definition scales each image's kernel and divides by its norm."""
    layer = StyleLayer(cin, cout, small(modulation="demodulate"), up=False).double()
    x, w = torch.randn(batch, cin, size, size).double(), torch.randn(batch, 20).double()
    style = layer.affine(w)
    expected = []
    for image, scale in zip(x, style, strict=True):
        kernel = layer.weight * layer.weight_gain * scale[None, :, None, None]
        kernel = kernel / (kernel.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt()
        expected.append(F.leaky_relu(F.conv2d(image[None], kernel, padding=1) + layer.bias[None, :, None, None], 0.2))
    torch.testing.assert_close(layer(x, style), torch.cat(expected) * 2**0.5, rtol=1e-4, atol=1e-5)


def test_adain_sets_mean_and_deviation() -> None:
    layer = StyleLayer(3, 4, small(modulation="adain"), up=False)
    x = torch.randn(2, 3, 16, 16)
    style = torch.randn(2, 8)
    y = layer(x, style)
    scale, shift = style.chunk(2, 1)
    torch.testing.assert_close(y.mean((2, 3)), shift, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(y.std((2, 3), correction=0), scale.abs(), atol=1e-3, rtol=1e-3)


def test_minibatch_std_of_a_loop() -> None:
    x = torch.randn(8, 3, 2, 2)
    out = minibatch_std(x, 4)
    for i in range(8):
        group = x[[j for j in range(8) if j % 2 == i % 2]]  # size 4: images i, i + 2, i + 4, i + 6
        spread = (group.var(0, unbiased=False) + 1e-8).sqrt().mean()
        torch.testing.assert_close(out[i, 3], spread.expand(2, 2))


def test_the_collapse_of_one_kind_shows_in_its_own_deviation() -> None:
    """Real and generated images judged in one pass do not share a group."""
    discriminator = Discriminator(DiscriminatorConfig(channel_base=64, channel_max=4), 8)
    images = torch.randn(12, 3, 8, 8)
    torch.testing.assert_close(
        discriminator(images, parts=3), torch.cat([discriminator(part) for part in images.chunk(3)])
    )


def test_r1_reaches_the_weights() -> None:
    """The penalty's derivative by one weight, against a central difference in float64."""
    config = DiscriminatorConfig(channel_base=64, channel_max=4, minibatch_std_group=0)
    discriminator = Discriminator(config, 8).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    weight = discriminator.blocks[0].conv0.weight

    def penalty() -> torch.Tensor:
        real = x.clone().requires_grad_(True)
        return r1_penalty(discriminator(real), real).sum()

    (gradient,) = torch.autograd.grad(penalty(), weight)
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weight[0, 0, 1, 1] += step
        values.append(penalty().item())
    assert gradient[0, 0, 1, 1].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)
    assert gradient[0, 0, 1, 1].abs() > 1e-6
