"""The networks arranged for use: constants folded, styles apart from synthesis, one precision, optional compilation."""

from __future__ import annotations

import hashlib
import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan import ops
from ficgan.errors import UsageError
from ficgan.models.ficgan import FICGAN, Codes, Encoder, Generator, StyleLayer
from ficgan.models.layers import SQRT_HALF, Conv2d, DownBlock, Linear, normalise_rms

__all__ = ["BATCHES", "InferenceModel"]

BATCHES = (1, 2, 4, 8, 16, 32)
"""Batch sizes a compiled model is made for; another size is filled up to the next, larger ones are cut."""

SLOPE = 0.2
ROOT2 = math.sqrt(2)


class InferenceModel(nn.Module):
    """A trained model for use only: no gradients, no training state.

    What is constant is computed once: learning-rate gains, the gains of activations and residual sums, the kernel norms
    of demodulation. What depends on w alone (`styles`) is apart from what depends on the picture (`synthesise`), so a
    face which keeps its w over a film has its styles computed once. The mapping network and the styles stay in float32.

    Args:
        model: the trained networks; not changed.
        dtype: of features and convolution weights: float32, bfloat16 or float16.
        compile: let torch.compile fuse what is left; on a GPU its graphs are replayed (CUDA graphs). The first call
            of each batch size takes up to a minute; on a CPU a C++ compiler must be installed.
    """

    def __init__(
        self, model: FICGAN, *, device: str = "cpu", dtype: torch.dtype = torch.float32, compile: bool = False
    ) -> None:
        super().__init__()
        self.config, self.device, self.dtype, self.compiled = model.config, device, dtype, compile
        self.num_layers, self.resolution = model.num_layers, model.resolution
        with torch.no_grad():
            self.encoder = _Encoder(model.encoder, dtype)
            self.mapping = nn.Sequential(*(_Linear(cast(Linear, layer)) for layer in model.mapping.layers))
            self.styler = _Styler(model.generator)
            self.synthesiser = _Synthesiser(model.generator, dtype)
        self.requires_grad_(False).eval().to(device)
        if compile:
            mode = "reduce-overhead" if device.startswith("cuda") else "default"
            for part in (self.encoder, self.styler, self.synthesiser):
                part.compile(mode=mode, dynamic=False)

    @torch.inference_mode()
    def encode(self, x: Tensor) -> Codes:
        """Codes of images [B,3,R,R] in [−1, 1], any floating type; z_id is float32, z_non of the model's type."""
        x = x.to(device=self.device, dtype=self.dtype).contiguous(memory_format=torch.channels_last)
        return Codes(*self._run(self.encoder, x))

    @torch.inference_mode()
    def map(self, z_id: Tensor) -> Tensor:
        """Intermediate latent w [B,w_dim], float32, of identity codes [B,id_dim]."""
        return self.mapping(normalise_rms(z_id.float()))

    @torch.inference_mode()
    def styles(self, w: Tensor) -> Tensor:
        """All that the style layers need of w, [B,w_dim] or [B,L,w_dim]: [B,S] float32, one row a face."""
        w = w if w.ndim == 3 else w.unsqueeze(1).expand(-1, self.num_layers, -1)
        return self._run(self.styler, w.to(device=self.device, dtype=torch.float32).contiguous())[0]

    @torch.inference_mode()
    def synthesise(self, styles: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from rows of `styles` [B,S] and spatial codes [B,C,4,4]."""
        return self._run(self.synthesiser, styles, z_non.to(self.dtype))[0]

    def generate(self, w: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from w [B,w_dim] or [B,L,w_dim] and z_non [B,C,4,4]."""
        return self.synthesise(self.styles(w), z_non)

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction G(E(x)) of images [B,3,R,R]."""
        codes = self.encode(x)
        return self.generate(self.map(codes.z_id), codes.z_non)

    def digest(self) -> str:
        """Short hash of the weights."""
        total = hashlib.sha256()
        for name, value in self.named_buffers():
            total.update(f"{name} {value.double().sum().item()!r} {value.double().square().sum().item()!r}".encode())
        return total.hexdigest()[:16]

    def _run(self, part: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.compiled:
            return _tuple(part(*inputs))
        # Few sizes, each compiled once. A replayed graph writes where it wrote before, so results are copied out.
        count, outputs = len(inputs[0]), []
        for begin in range(0, max(count, 1), BATCHES[-1]):
            chunk = [x[begin : begin + BATCHES[-1]] for x in inputs]
            size = len(chunk[0])
            filled = next(batch for batch in BATCHES if batch >= size)
            chunk = [F.pad(x, [0, 0] * (x.ndim - 1) + [0, filled - size]) if filled > size else x for x in chunk]
            outputs.append(tuple(y[:size].clone() for y in self._call(part, chunk)))
        return tuple(torch.cat(ys) for ys in zip(*outputs, strict=True)) if len(outputs) > 1 else outputs[0]

    def _call(self, part: nn.Module, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        try:
            return _tuple(part(*inputs))
        except Exception as error:  # the compiler's own errors come in many classes
            if "compiler" not in str(error).lower():
                raise
            reason = str(error).splitlines()[0]
            raise UsageError(f"the model cannot be compiled here ({reason}); leave compile out") from error


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


class _Conv(nn.Module):
    """Convolution, bias and leaky ReLU with every factor folded in."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: Conv2d, dtype: torch.dtype, gain: float = 1.0) -> None:
        super().__init__()
        self.padding, self.activation = conv.kernel // 2, conv.activation
        gain = gain * (ROOT2 if conv.activation == "lrelu" else 1.0)
        weight = conv.weight.detach().float() * (conv.weight_gain * gain)
        self.register_buffer("weight", weight.to(dtype).contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", None if conv.bias is None else (conv.bias.detach().float() * gain).to(dtype))

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] → [B,out,H,W]
        if x.is_cuda:  # cuDNN would add the bias in a pass of its own; the compiled op does both in one
            y = F.conv2d(x, self.weight, padding=self.padding)
            return ops.bias_act(y, self.bias, act=self.activation, gain=1.0)
        y = F.conv2d(x, self.weight, self.bias, padding=self.padding)
        return F.leaky_relu_(y, SLOPE) if self.activation == "lrelu" else y


class _Linear(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.activation = linear.activation
        gain = ROOT2 if linear.activation == "lrelu" else 1.0
        self.register_buffer("weight", linear.weight.detach().float() * (linear.weight_gain * gain))
        self.register_buffer("bias", linear.bias.detach().float() * (linear.bias_gain * gain))

    def forward(self, x: Tensor) -> Tensor:  # [B,in] → [B,out]
        y = F.linear(x, self.weight, self.bias)
        return F.leaky_relu_(y, SLOPE) if self.activation == "lrelu" else y


class _Down(nn.Module):
    """The residual block that halves the resolution."""

    taps: Tensor

    def __init__(self, block: DownBlock, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv0 = _Conv(block.conv0, dtype)
        self.conv1, self.skip = (_Conv(conv, dtype, gain=SQRT_HALF) for conv in (block.conv1, block.skip))
        self.register_buffer("taps", block.conv1.taps.clone())

    def forward(self, x: Tensor) -> Tensor:  # [B,in,H,W] → [B,out,H/2,W/2]
        y = self.conv1(ops.downsample2d(self.conv0(x), self.taps))
        return y.add_(self.skip(ops.downsample2d(x, self.taps)))


class _Encoder(nn.Module):
    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        super().__init__()
        self.spatial_norm = encoder.config.spatial_norm
        self.from_rgb = _Conv(encoder.from_rgb, dtype)
        self.trunk = nn.Sequential(*(_Down(cast(DownBlock, block), dtype) for block in encoder.trunk))
        self.identity_conv = _Conv(encoder.identity_conv, dtype)
        self.identity_head = _Linear(encoder.identity_head)
        self.spatial: nn.Module | None = None
        if encoder.spatial_conv is not None:
            convs = (cast(Conv2d, encoder.spatial_conv), cast(Conv2d, encoder.spatial_head))
            self.spatial = nn.Sequential(*(_Conv(conv, dtype) for conv in convs))
        constant = encoder.spatial_constant
        self.register_buffer("constant", None if constant is None else constant.detach().to(dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [B,3,R,R] → [B,id_dim], [B,C,4,4]
        trunk = self.trunk(self.from_rgb(x))
        z_id = self.identity_head(self.identity_conv(trunk).float().mean((2, 3)))
        if self.spatial is None:
            z_non = cast(Tensor, self.constant).expand(len(x), -1, -1, -1)
        else:
            z_non = self.spatial(trunk)
        return z_id, normalise_rms(z_non) if self.spatial_norm else z_non


class _Styler(nn.Module):
    """w of every layer → one row: for each layer its scales and norms (demodulate) or scales and shifts (adain)."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_LayerStyle(cast(StyleLayer, layer)) for layer in generator.layers)

    def forward(self, w: Tensor) -> Tensor:  # [B,L,w_dim] → [B,S]
        rows = [part for layer, row in zip(self.layers, w.unbind(1), strict=True) for part in layer(row)]
        return torch.cat(rows, dim=1)


class _LayerStyle(nn.Module):
    power: Tensor | None
    tiny: Tensor

    def __init__(self, layer: StyleLayer) -> None:
        super().__init__()
        self.affine = _Linear(layer.affine)
        power = None
        if layer.modulation == "demodulate":
            # √2·rsqrt(p + ε) = rsqrt(p/2 + ε/2): the norm takes the activation's gain along, see _Style.
            power = (layer.weight.detach().float() * layer.weight_gain).square().sum((2, 3)).t().contiguous() / 2
        self.register_buffer("power", power)
        self.register_buffer("tiny", torch.tensor(0.5e-8))

    def forward(self, w: Tensor) -> list[Tensor]:
        style = self.affine(w)
        if self.power is None:
            return [style]
        return [style, torch.addmm(self.tiny, style.square(), self.power).rsqrt_()]


class _Style(nn.Module):
    """A style layer without its upsampling."""

    weight: Tensor
    bias: Tensor

    def __init__(self, layer: StyleLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.up, self.demodulate = layer.up, layer.modulation == "demodulate"
        out_channels, in_channels = layer.weight.shape[:2]
        self.widths = [in_channels, out_channels] if self.demodulate else [out_channels, out_channels]
        # adain: the activation's gain goes into weight and bias. demodulate: the norm that the sum is multiplied with
        # carries both the gain and the equalised weights' scale, only the bias needs the gain here.
        weight = layer.weight.detach().float() * layer.weight_gain * (1.0 if self.demodulate else ROOT2)
        self.register_buffer("weight", weight.to(dtype).contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", (layer.bias.detach().float() * ROOT2).to(dtype))

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """`x` [B,in,H,W], already scaled when demodulating; `first` and `second` [B,C]: the halves of the row."""
        y = F.conv2d(x, self.weight, padding=1)
        if self.demodulate:
            return ops.scale_bias_lrelu(y, second, self.bias, alpha=SLOPE, gain=1.0)
        return ops.adain(y, self.bias, first, second, alpha=SLOPE, gain=1.0)


class _Synthesiser(nn.Module):
    taps: Tensor

    def __init__(self, generator: Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.start = _Conv(generator.start, dtype)
        self.layers = nn.ModuleList(_Style(cast(StyleLayer, layer), dtype) for layer in generator.layers)
        self.to_rgb = nn.ModuleList(_Conv(cast(Conv2d, conv), dtype) for conv in generator.to_rgb)
        self.widths = [width for layer in self.layers for width in cast(_Style, layer).widths]
        self.demodulate = generator.config.modulation == "demodulate"
        self.register_buffer("taps", generator.taps.clone())

    def forward(self, styles: Tensor, z_non: Tensor) -> Tensor:  # [B,S], [B,C,4,4] → [B,3,R,R]
        parts = styles.to(z_non.dtype).split(self.widths, dim=1)
        x, image = self.start(z_non), None
        for block, to_rgb in enumerate(self.to_rgb):
            narrow, wide = parts[4 * block : 4 * block + 2], parts[4 * block + 2 : 4 * block + 4]
            if self.demodulate:
                x = x * narrow[0][:, :, None, None]
            y = self.layers[2 * block](x, *narrow)
            if self.demodulate:  # scaling and upsampling commute: scale while the picture is small
                y = y.mul_(wide[0][:, :, None, None])
            x = self.layers[2 * block + 1](ops.upsample2d(y, self.taps), *wide)
            rgb = to_rgb(x)
            image = rgb if image is None else rgb.add_(ops.upsample2d(image, self.taps))
        assert image is not None
        return image
