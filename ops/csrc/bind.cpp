// The CUDA implementations behind the operators of ops/operators.py: output allocation and launch.
//
// Schemas, checks of shapes, derivatives and shape inference are Python's; registration compares the signatures here
// with the schemas. With FICGAN_ON_CPU the same code is for tensors on the CPU, over the emulator of tests/ops.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#ifndef FICGAN_ON_CPU
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <cstdint>
#include <optional>
#include <tuple>

#include "kernels.h"

namespace {

using at::Tensor;

ficgan::Type type_of(const Tensor& x, const char* op) {
    switch (x.scalar_type()) {
        case at::kHalf: return ficgan::Type::f16;
        case at::kBFloat16: return ficgan::Type::bf16;
        case at::kFloat: return ficgan::Type::f32;
        case at::kDouble: return ficgan::Type::f64;
        default: TORCH_CHECK(false, op, ": ", x.scalar_type(), " is no type of the compiled ops; use a floating point type");
    }
}

// float32, or float64 for float64: what sums are kept in.
at::ScalarType wide(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

bool channels_last(const Tensor& x) {
    return x.dim() == 4 && !x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

at::MemoryFormat format_of(const Tensor& x) {
    return channels_last(x) ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

ficgan::Layout layout_of(at::MemoryFormat format) {
    return format == at::MemoryFormat::ChannelsLast ? ficgan::Layout::channels_last : ficgan::Layout::contiguous;
}

#ifdef FICGAN_ON_CPU
struct Guard {
    explicit Guard(c10::Device) {}
    ~Guard() {}
};
void* stream() { return nullptr; }
const char* message(int) { return "the emulator refused"; }
#else
using Guard = c10::cuda::CUDAGuard;
void* stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
const char* message(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
#endif

void check(int error, const char* op) {
    TORCH_CHECK(error == 0, op, ": the CUDA kernel could not be launched: ", message(error),
                "; FICGAN_OPS=ref does without");
}

// --- bias_act -------------------------------------------------------------------------------------------------------

Tensor bias_act(const Tensor& x, const std::optional<Tensor>& b, double slope, double gain) {
    constexpr auto op = "bias_act";
    const Guard guard(x.device());
    const auto input = x.contiguous(format_of(x));
    auto y = at::empty_like(input);
    if (x.numel() == 0) return y;
    ficgan::BiasAct p{slope, gain, x.numel(), 1, 1};
    std::optional<Tensor> bias;
    if (b) {
        bias = b->contiguous();
        p.channels = b->size(0);
        // Elements between neighbouring channels in memory: pixels, or 1 when channels come last.
        if (!channels_last(x)) p.inner = x.numel() / (x.size(0) * x.size(1));
    }
    check(ficgan::bias_act(type_of(x, op), p, input.const_data_ptr(), bias ? bias->const_data_ptr() : nullptr,
                           y.data_ptr(), stream()), op);
    return y;
}

Tensor bias_act_grad(const Tensor& dy, const Tensor& y, double slope, double gain) {
    constexpr auto op = "bias_act_grad";
    const Guard guard(y.device());
    const auto format = format_of(y);
    const auto output = y.contiguous(format), gradient = dy.contiguous(format);
    auto dx = at::empty_like(output);
    if (dx.numel() == 0) return dx;
    const ficgan::BiasAct p{slope, gain, y.numel(), 1, 1};
    check(ficgan::bias_act_grad(type_of(y, op), p, gradient.const_data_ptr(), output.const_data_ptr(), dx.data_ptr(),
                                stream()), op);
    return dx;
}

// --- upfirdn2d ------------------------------------------------------------------------------------------------------

Tensor upfirdn2d(const Tensor& x, const Tensor& f, int64_t up, int64_t down, at::IntArrayRef padding,
                 bool flip_filter, double gain) {
    constexpr auto op = "upfirdn2d";
    const int64_t height = x.size(2) * up + padding[2] + padding[3] - f.size(0);
    const int64_t width = x.size(3) * up + padding[0] + padding[1] - f.size(0);
    TORCH_CHECK(height >= 0 && width >= 0, op, ": padding ", padding, " leaves no output; the filter does not fit");
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), taps = f.contiguous();
    auto y = at::empty({x.size(0), x.size(1), height / down + 1, width / down + 1}, x.options(), format);
    if (y.numel() == 0) return y;
    const ficgan::Upfirdn2d p{layout_of(format), x.size(0), x.size(1), x.size(2), x.size(3), y.size(2), y.size(3),
                              static_cast<int>(f.size(0)), static_cast<int>(up), static_cast<int>(down), padding[0],
                              padding[2], flip_filter ? 1 : 0, gain};
    check(ficgan::upfirdn2d(type_of(x, op), p, input.const_data_ptr(), taps.const_data_ptr(), y.data_ptr(), stream()),
          op);
    return y;
}

// --- the tail of a style layer --------------------------------------------------------------------------------------

ficgan::Style style_of(const Tensor& x, at::MemoryFormat format, double alpha, double gain, double eps) {
    return {layout_of(format), x.size(0), x.size(1), x.size(2) * x.size(3), alpha, gain, eps};
}

// One number per image and channel; of an image without pixels the sums are 0.
Tensor per_channel(const Tensor& x) {
    const auto options = x.options().dtype(wide(x));
    return x.numel() ? at::empty({x.size(0), x.size(1)}, options) : at::zeros({x.size(0), x.size(1)}, options);
}

Tensor scale_bias_lrelu(const Tensor& x, const Tensor& scale, const Tensor& b, double alpha, double gain) {
    constexpr auto op = "scale_bias_lrelu";
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), s = scale.contiguous(), bias = b.contiguous();
    auto y = at::empty_like(input);
    if (y.numel() == 0) return y;
    check(ficgan::scale_bias_lrelu(type_of(x, op), style_of(x, format, alpha, gain, 0), input.const_data_ptr(),
                                   s.const_data_ptr(), bias.const_data_ptr(), y.data_ptr(), stream()), op);
    return y;
}

std::tuple<Tensor, Tensor, Tensor> scale_bias_lrelu_grad(const Tensor& dy, const Tensor& x, const Tensor& y,
                                                         const Tensor& scale, double alpha, double gain) {
    constexpr auto op = "scale_bias_lrelu_grad";
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), gradient = dy.contiguous(format), output = y.contiguous(format);
    const auto s = scale.contiguous();
    auto dx = at::empty_like(input), dscale = per_channel(x), db = per_channel(x);
    if (dx.numel() == 0) return {dx, dscale, db};
    check(ficgan::scale_bias_lrelu_grad(type_of(x, op), style_of(x, format, alpha, gain, 0), gradient.const_data_ptr(),
                                        input.const_data_ptr(), output.const_data_ptr(), s.const_data_ptr(),
                                        dx.data_ptr(), dscale.data_ptr(), db.data_ptr(), stream()), op);
    return {dx, dscale, db};
}

std::tuple<Tensor, Tensor, Tensor> adain(const Tensor& x, const Tensor& b, const Tensor& scale, const Tensor& shift,
                                         double alpha, double gain, double eps) {
    constexpr auto op = "adain";
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), bias = b.contiguous(), s = scale.contiguous(), t = shift.contiguous();
    auto y = at::empty_like(input), mean = per_channel(x), rstd = per_channel(x);
    if (y.numel() == 0) return {y, mean, rstd};
    check(ficgan::adain(type_of(x, op), style_of(x, format, alpha, gain, eps), input.const_data_ptr(),
                        bias.const_data_ptr(), s.const_data_ptr(), t.const_data_ptr(), y.data_ptr(), mean.data_ptr(),
                        rstd.data_ptr(), stream()), op);
    return {y, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> adain_grad(const Tensor& dy, const Tensor& x, const Tensor& b,
                                                      const Tensor& scale, const Tensor& mean, const Tensor& rstd,
                                                      double alpha, double gain) {
    constexpr auto op = "adain_grad";
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), gradient = dy.contiguous(format);
    const auto bias = b.contiguous(), s = scale.contiguous(), m = mean.contiguous(), r = rstd.contiguous();
    auto dx = at::empty_like(input), dscale = per_channel(x), dshift = per_channel(x), db = per_channel(x);
    if (dx.numel() == 0) return {dx, dscale, dshift, db};
    check(ficgan::adain_grad(type_of(x, op), style_of(x, format, alpha, gain, 0), gradient.const_data_ptr(),
                             input.const_data_ptr(), bias.const_data_ptr(), s.const_data_ptr(), m.const_data_ptr(),
                             r.const_data_ptr(), dx.data_ptr(), dscale.data_ptr(), dshift.data_ptr(), db.data_ptr(),
                             stream()), op);
    return {dx, dscale, dshift, db};
}

}  // namespace

#ifdef FICGAN_ON_CPU
TORCH_LIBRARY_IMPL(ficgan_ops, CPU, m) {
#else
TORCH_LIBRARY_IMPL(ficgan_ops, CUDA, m) {
#endif
    m.impl("bias_act", bias_act);
    m.impl("bias_act_grad", bias_act_grad);
    m.impl("upfirdn2d", upfirdn2d);
    m.impl("scale_bias_lrelu", scale_bias_lrelu);
    m.impl("scale_bias_lrelu_grad", scale_bias_lrelu_grad);
    m.impl("adain", adain);
    m.impl("adain_grad", adain_grad);
}
