"""The networks arranged for use give what the trained ones give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ficgan.config import ModelConfig
from ficgan.models import FICGAN, InferenceModel

SMALL = {"resolution": 32, "channel_base": 256, "channel_max": 24, "spatial_channels": 4, "mapping_layers": 2}


def networks(**changes: object) -> FICGAN:
    torch.manual_seed(0)
    model = FICGAN(ModelConfig(**{**SMALL, **changes})).eval().requires_grad_(False)  # type: ignore[arg-type]
    for parameter in model.parameters():  # biases start at 0 and would hide a gain that is not applied to them
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def faces(count: int) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize("modulation", ["adain", "demodulate"])
@pytest.mark.parametrize("spatial", ["encoded", "learned-constant"])
@pytest.mark.parametrize("norm", [True, False])
def test_float32_is_the_trained_model(modulation: str, spatial: str, norm: bool) -> None:
    model = networks(modulation=modulation, spatial_code=spatial, spatial_norm=norm)
    fast = InferenceModel(model)
    x = faces(3)
    codes, wanted = fast.encode(x), model.encoder(x)
    torch.testing.assert_close(codes.z_id, wanted.z_id, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(codes.z_non, wanted.z_non, rtol=1e-4, atol=1e-5)
    w = fast.map(codes.z_id)
    torch.testing.assert_close(w, model.mapping(wanted.z_id), rtol=1e-4, atol=1e-5)
    per_layer = torch.stack([w + n for n in range(model.num_layers)], dim=1)
    for code in (w, per_layer):
        torch.testing.assert_close(
            fast.synthesise(fast.styles(code), codes.z_non), model.generator(code, codes.z_non), rtol=0, atol=5e-5
        )
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=5e-5)


@pytest.mark.parametrize("modulation", ["adain", "demodulate"])
def test_faces_with_different_styles_share_a_batch(modulation: str) -> None:
    """Rows of styles computed apart, at different times, and stacked: each face as if it were alone."""
    model = networks(modulation=modulation)
    fast = InferenceModel(model)
    w = torch.randn(4, model.config.w_dim, generator=torch.Generator().manual_seed(2))
    z_non = fast.encode(faces(4)).z_non
    rows = torch.cat([fast.styles(w[n : n + 1]) for n in range(4)])
    together = fast.synthesise(rows, z_non)
    for n in range(4):
        alone = fast.synthesise(fast.styles(w[n : n + 1]), z_non[n : n + 1])
        torch.testing.assert_close(together[n : n + 1], alone, rtol=0, atol=2e-5)
    assert (together[0] - together[1]).abs().max() > 0.01


def test_bfloat16_is_close_and_keeps_the_identity_code_in_float32() -> None:
    model = networks(modulation="demodulate")
    fast = InferenceModel(model, dtype=torch.bfloat16)
    x = faces(2)
    codes = fast.encode(x)
    assert codes.z_id.dtype == torch.float32 and codes.z_non.dtype == torch.bfloat16
    exact = model(x)
    assert (fast(x).float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
@pytest.mark.parametrize("modulation", ["adain", "demodulate"])
def test_on_the_gpu(modulation: str) -> None:
    model = networks(modulation=modulation)
    fast = InferenceModel(model, device="cuda")
    for count in (1, 3, 40):
        torch.testing.assert_close(fast(faces(count)).cpu(), model(faces(count)), rtol=0, atol=2e-2)
