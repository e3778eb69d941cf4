"""The U-Net: its shapes, its attention and norms against slow ones, and what it depends on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.lab.attacks.diffusion.unet import PRESETS, Architecture, Attention, NoiseLevel, Norm, Pointwise, UNet, Up

TINY = Architecture(8, (1, 2), blocks=1, attention=(4,))


def awake(network: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """With random weights in the layers that begin at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in network.parameters():
            if not weights.any():
                weights.normal_(0, 0.2, generator=generator)
    return network.eval()


@settings(max_examples=12, deadline=None)
@given(
    batch=st.integers(1, 3), levels=st.integers(1, 3), base=st.sampled_from([4, 6, 12]), patch=st.sampled_from([1, 2]),
    blocks=st.integers(1, 2), head=st.sampled_from([0, 4]), times=st.integers(1, 2),
)  # fmt: skip
def test_an_answer_has_the_shape_of_its_image(
    batch: int, levels: int, base: int, patch: int, blocks: int, head: int, times: int
) -> None:
    size = 4 * times * patch * 2 ** (levels - 1)
    network = UNet(Architecture(base, (1, 2, 3)[:levels], blocks, (8,), head, patch=patch), size)
    noisy, seen = torch.randn(2, batch, 3, size, size)
    assert network(noisy, seen, torch.rand(batch)).shape == noisy.shape


def test_sizes_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 16"):
        PRESETS["sr3"].sides(40)
    assert PRESETS["sr3"].sides(256) == [256, 128, 64, 32, 16]
    assert PRESETS["patched"].sides(64) == [32, 16, 8]


def test_sr3_has_the_layers_of_the_paper() -> None:
    with torch.device("meta"):
        network = UNet(PRESETS["sr3"], 256)
    with_attention = [name for name, module in network.named_modules() if isinstance(module, Attention)]
    assert network.first.in_channels == 6 and network.last.out_channels == 3
    assert max(m.in_channels for m in network.modules() if isinstance(m, torch.nn.Conv2d)) == 1024
    assert len(with_attention) == 2 + 1 + 3  # at 16, on the way down, in the middle, on the way up
    assert 90e6 < sum(weights.numel() for weights in network.parameters()) < 110e6


def test_untrained_it_answers_zero_and_then_depends_on_all_it_is_given() -> None:
    network, generator = UNet(TINY, 8), torch.Generator().manual_seed(0)
    noisy, seen = torch.randn(2, 2, 3, 8, 8, generator=generator)
    root = torch.tensor([0.5, 0.5])
    with torch.no_grad():
        assert not network(noisy, seen, root).any()
        awake(network)
        answer = network(noisy, seen, root)
        assert not torch.allclose(answer, network(noisy, seen + 1, root), atol=1e-3)
        assert not torch.allclose(answer, network(noisy + 1, seen, root), atol=1e-3)
        assert not torch.allclose(answer, network(noisy, seen, root * 0.9), atol=1e-3)
        # Image by image; one level for all is the level of each; no condition is a condition of zeros.
        torch.testing.assert_close(network(noisy[1:], seen[1:], root[1:]), answer[1:], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(network(noisy, seen, root[:1]), answer)
        torch.testing.assert_close(network(noisy, None, root), network(noisy, torch.zeros_like(seen), root))


def test_every_weight_is_used() -> None:
    network = awake(UNet(TINY, 8)).train()
    noisy, seen = torch.randn(2, 2, 3, 8, 8)
    network(noisy, seen, torch.rand(2)).square().mean().backward()
    idle = [name for name, weights in network.named_parameters() if weights.grad is None or not weights.grad.any()]
    assert not idle


@pytest.mark.parametrize("head", [0, 4])
def test_attention_against_a_loop(head: int) -> None:
    layer = awake(Attention(8, head)).double()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, normed = layer(x).numpy(), layer.norm(x).numpy()
    w, b, wo, bo = (p.detach().numpy() for p in (layer.qkv.weight, layer.qkv.bias, layer.out.weight, layer.out.bias))
    width = head or 8
    for image in range(2):
        spots = [normed[image, :, i, j] for i in range(3) for j in range(4)]
        q, k, v = (np.array([(w @ spot + b)[part * 8 : part * 8 + 8] for spot in spots]) for part in range(3))
        for here in range(12):
            mixed = np.zeros(8)
            for start in range(0, 8, width):
                part = slice(start, start + width)
                likes = [math.exp(q[here, part] @ k[there, part] / math.sqrt(width)) for there in range(12)]
                for there in range(12):
                    mixed[part] += likes[there] / sum(likes) * v[there, part]
            expected = x[image, :, here // 4, here % 4].numpy() + wo @ mixed + bo
            np.testing.assert_allclose(found[image, :, here // 4, here % 4], expected, atol=1e-9)


def test_norm_against_a_loop() -> None:
    layer = Norm(12).double()
    x, affine = torch.randn(2, 12, 3, 3, dtype=torch.float64), torch.randn(2, 24, dtype=torch.float64)
    found, per = layer(x, affine).detach().numpy(), 12 // layer.num_groups
    assert per >= 4
    for image in range(2):
        for channel in range(12):
            group = x[image, channel // per * per : channel // per * per + per].numpy()
            normed = (x[image, channel].numpy() - group.mean()) / math.sqrt(group.var() + layer.eps)
            expected = normed * (1 + float(affine[image, channel])) + float(affine[image, 12 + channel])
            np.testing.assert_allclose(found[image, channel], expected, atol=1e-9)


def test_norm_in_bfloat16_learns_as_in_float32() -> None:
    """By another way on a CPU, which its derivatives must not show."""
    layer, x, affine = Norm(8), torch.randn(2, 8, 4, 4), torch.randn(2, 16)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        leaf = x.clone().requires_grad_()
        layer(leaf.to(dtype), affine.to(dtype)).float().pow(3).sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.05
    with torch.no_grad():
        torch.testing.assert_close(layer(x.bfloat16()).float(), layer(x), atol=0.05, rtol=0.02)


def test_pointwise_is_a_convolution() -> None:
    layer, x = Pointwise(5, 7), torch.randn(2, 5, 4, 3)
    expected = torch.nn.functional.conv2d(x, layer.weight[:, :, None, None], layer.bias)
    torch.testing.assert_close(layer(x), expected)


def test_up_is_a_convolution_of_the_enlarged_image() -> None:
    layer, x = Up(4).double(), torch.randn(2, 4, 5, 3, dtype=torch.float64)
    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(
        layer(x), torch.nn.functional.conv2d(large, layer.conv.weight, layer.conv.bias, padding=1)
    )


def test_the_level_is_told_by_sines_of_5000_times_it() -> None:
    layer, root = NoiseLevel(8), torch.tensor([0.25, 0.9])
    told: list[torch.Tensor] = []
    layer.enter.register_forward_pre_hook(lambda module, inputs: told.append(inputs[0]))
    layer(root)
    for row, level in enumerate(root.tolist()):
        angles = [5000 * level * 1e4 ** (-i / 4) for i in range(4)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        np.testing.assert_allclose(told[0][row], expected, atol=2e-3)


def test_dropout_acts_in_training_alone() -> None:
    network = awake(UNet(Architecture(8, (1, 2), 1, (), dropout=0.5), 8))
    noisy, seen, root = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8), torch.tensor([0.5])
    with torch.no_grad():
        assert torch.equal(network(noisy, seen, root), network(noisy, seen, root))
        network.train()
        assert not torch.equal(network(noisy, seen, root), network(noisy, seen, root))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_the_answer_is_the_same() -> None:
    network, noisy, seen = awake(UNet(TINY, 8)), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    root = torch.rand(2)
    with torch.no_grad():
        expected = network(noisy, seen, root)
        found = network.cuda()(noisy.cuda(), seen.cuda(), root.cuda()).cpu()
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
