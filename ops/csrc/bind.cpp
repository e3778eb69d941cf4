// The CUDA implementations behind the operators of ops/registry.py: checks, output allocation and launch.
//
// The schemas are defined in Python, and this library adds their CUDA kernels: registration compares the signatures
// here with them. Autograd and shape inference are Python's, so nothing here is differentiable. With FICGAN_ON_CPU the
// same code becomes operators of their own, over the emulated kernels of tests/ops/native, for tensors on the CPU.
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

// What this file was built from and for, read by ops/library.py without loading it.
#ifndef FICGAN_STAMP
#define FICGAN_STAMP "{}"
#endif
extern "C" __attribute__((used, visibility("default"))) const char ficgan_ops_stamp[] = "ficgan.ops build " FICGAN_STAMP;

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
                "; `python -m ficgan.ops` tells what the library was built for, FICGAN_OPS=ref does without it");
}

void check_alike(const Tensor& x, const Tensor& other, const char* name, const char* op) {
    TORCH_CHECK(other.device() == x.device() && other.scalar_type() == x.scalar_type(), op, ": ", name, " is ",
                other.scalar_type(), " on ", other.device(), ", but must be ", x.scalar_type(), " on ", x.device());
}

void check_like(const Tensor& x, const Tensor& other, const char* name, const char* op) {
    check_alike(x, other, name, op);
    TORCH_CHECK(other.sizes() == x.sizes(), op, ": ", name, " has shape ", other.sizes(), ", but must have ", x.sizes());
}

// --- bias_act -------------------------------------------------------------------------------------------------------

struct Settings {
    int64_t dim, act;
    double alpha, gain, limit;
};

ficgan::BiasAct bias_act_of(const Tensor& x, const std::optional<Tensor>& b, const Settings& s, const char* op) {
    TORCH_CHECK(0 <= s.act && s.act <= 6, op, ": there is no activation ", s.act);
    ficgan::BiasAct p{static_cast<ficgan::Activation>(s.act), s.alpha, s.gain, s.limit, x.numel(), 1, 1};
    if (b) {
        TORCH_CHECK(0 <= s.dim && s.dim < x.dim() && b->dim() == 1 && b->size(0) == x.size(s.dim), op,
                    ": a bias of shape ", b->sizes(), " does not fit dimension ", s.dim, " of ", x.sizes());
        check_alike(x, *b, "b", op);
        p.channels = b->size(0);
        // Elements between neighbours along `dim`, in the order of the memory: N,H,W,C when channels come last.
        if (channels_last(x)) {
            const int64_t c = x.size(1), w = x.size(3);
            p.inner = s.dim == 1 ? 1 : s.dim == 3 ? c : s.dim == 2 ? w * c : x.size(2) * w * c;
        } else {
            for (int64_t d = s.dim + 1; d < x.dim(); ++d) p.inner *= x.size(d);
        }
    }
    return p;
}

std::optional<Tensor> dense(const std::optional<Tensor>& b) { return b ? std::optional(b->contiguous()) : std::nullopt; }

const void* pointer(const std::optional<Tensor>& b) { return b ? b->const_data_ptr() : nullptr; }

Tensor bias_act(const Tensor& x, const std::optional<Tensor>& b, int64_t dim, int64_t act, double alpha, double gain,
                double limit) {
    constexpr auto op = "bias_act";
    const Guard guard(x.device());
    const auto input = x.contiguous(format_of(x));
    const auto bias = dense(b);
    const auto p = bias_act_of(input, bias, {dim, act, alpha, gain, limit}, op);
    auto y = at::empty_like(input);
    if (x.numel() == 0) return y;
    check(ficgan::bias_act(type_of(x, op), p, input.const_data_ptr(), pointer(bias), y.data_ptr(), stream()), op);
    return y;
}

Tensor bias_act_grad(const Tensor& dy, const Tensor& saved, const std::optional<Tensor>& b, int64_t dim, int64_t act,
                     double alpha, double gain, double limit) {
    constexpr auto op = "bias_act_grad";
    check_like(saved, dy, "dy", op);
    const Guard guard(saved.device());
    const auto format = format_of(saved);
    const auto kept = saved.contiguous(format), gradient = dy.contiguous(format);
    const auto bias = dense(b);
    const auto p = bias_act_of(kept, bias, {dim, act, alpha, gain, limit}, op);
    auto dx = at::empty_like(kept);
    if (dx.numel() == 0) return dx;
    check(ficgan::bias_act_grad(type_of(saved, op), p, gradient.const_data_ptr(), kept.const_data_ptr(), pointer(bias),
                                dx.data_ptr(), stream()), op);
    return dx;
}

Tensor bias_act_grad2(const Tensor& ddx, const Tensor& dy, const Tensor& x, const std::optional<Tensor>& b, int64_t dim,
                      int64_t act, double alpha, double gain, double limit) {
    constexpr auto op = "bias_act_grad2";
    check_like(x, dy, "dy", op);
    check_like(x, ddx, "ddx", op);
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), gradient = dy.contiguous(format), second = ddx.contiguous(format);
    const auto bias = dense(b);
    const auto p = bias_act_of(input, bias, {dim, act, alpha, gain, limit}, op);
    auto dx = at::empty_like(input);
    if (dx.numel() == 0) return dx;
    check(ficgan::bias_act_grad2(type_of(x, op), p, second.const_data_ptr(), gradient.const_data_ptr(),
                                 input.const_data_ptr(), pointer(bias), dx.data_ptr(), stream()), op);
    return dx;
}

// --- upfirdn2d ------------------------------------------------------------------------------------------------------

Tensor upfirdn2d(const Tensor& x, const Tensor& f, at::IntArrayRef up, at::IntArrayRef down, at::IntArrayRef padding,
                 bool flip_filter, double gain) {
    constexpr auto op = "upfirdn2d";
    TORCH_CHECK(x.dim() == 4 && f.dim() == 2 && f.numel() > 0, op, ": x has shape ", x.sizes(), " and f ", f.sizes(),
                ", but must be [N,C,H,W] and [h,w]");
    TORCH_CHECK(f.device() == x.device() && f.scalar_type() == wide(x), op, ": f is ", f.scalar_type(), " on ",
                f.device(), ", but must be ", wide(x), " on ", x.device());
    TORCH_CHECK(up.size() == 2 && down.size() == 2 && padding.size() == 4 && up[0] > 0 && up[1] > 0 && down[0] > 0 &&
                down[1] > 0, op, ": up ", up, ", down ", down, " and padding ", padding, " must be 2, 2 and 4 numbers");
    const int64_t height = x.size(2) * up[1] + padding[2] + padding[3] - f.size(0);
    const int64_t width = x.size(3) * up[0] + padding[0] + padding[1] - f.size(1);
    TORCH_CHECK(height >= 0 && width >= 0, op, ": padding ", padding, " leaves no output; the filter does not fit");
    const Guard guard(x.device());
    const auto format = format_of(x);
    const auto input = x.contiguous(format), taps = f.contiguous();
    auto y = at::empty({x.size(0), x.size(1), height / down[1] + 1, width / down[0] + 1}, x.options(), format);
    if (y.numel() == 0) return y;
    const ficgan::Upfirdn2d p{layout_of(format), x.size(0), x.size(1), x.size(2), x.size(3), y.size(2), y.size(3),
                              static_cast<int>(f.size(0)), static_cast<int>(f.size(1)), static_cast<int>(up[0]),
                              static_cast<int>(up[1]), static_cast<int>(down[0]), static_cast<int>(down[1]), padding[0],
                              padding[2], flip_filter ? 1 : 0, gain};
    check(ficgan::upfirdn2d(type_of(x, op), p, input.const_data_ptr(), taps.const_data_ptr(), y.data_ptr(), stream()),
          op);
    return y;
}

// --- the tail of a style layer --------------------------------------------------------------------------------------

ficgan::Style style_of(const Tensor& x, at::MemoryFormat format, double alpha, double gain, double eps) {
    return {layout_of(format), x.size(0), x.size(1), x.size(2) * x.size(3), alpha, gain, eps};
}

void check_images(const Tensor& x, const char* op) {
    TORCH_CHECK(x.dim() == 4, op, ": x has shape ", x.sizes(), ", but must be [N,C,H,W]");
}

void check_style(const Tensor& x, const Tensor& s, const char* name, const char* op) {
    check_alike(x, s, name, op);
    TORCH_CHECK(s.dim() == 2 && s.size(0) == x.size(0) && s.size(1) == x.size(1), op, ": ", name, " has shape ",
                s.sizes(), ", but must have one number per image and channel of ", x.sizes());
}

void check_statistic(const Tensor& x, const Tensor& s, const char* name, const char* op) {
    TORCH_CHECK(s.device() == x.device() && s.scalar_type() == wide(x) && s.dim() == 2 && s.size(0) == x.size(0) &&
                s.size(1) == x.size(1), op, ": ", name, " does not belong to x");
}

void check_bias(const Tensor& x, const Tensor& b, const char* op) {
    check_alike(x, b, "b", op);
    TORCH_CHECK(b.dim() == 1 && b.size(0) == x.size(1), op, ": a bias of shape ", b.sizes(), " does not fit ", x.sizes());
}

// One number per image and channel; of an image without pixels the sums are 0.
Tensor per_channel(const Tensor& x) {
    const auto options = x.options().dtype(wide(x));
    return x.numel() ? at::empty({x.size(0), x.size(1)}, options) : at::zeros({x.size(0), x.size(1)}, options);
}

Tensor scale_bias_lrelu(const Tensor& x, const Tensor& scale, const Tensor& b, double alpha, double gain) {
    constexpr auto op = "scale_bias_lrelu";
    check_images(x, op);
    check_style(x, scale, "scale", op);
    check_bias(x, b, op);
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
    check_images(x, op);
    check_like(x, dy, "dy", op);
    check_like(x, y, "y", op);
    check_style(x, scale, "scale", op);
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
    check_images(x, op);
    check_bias(x, b, op);
    check_style(x, scale, "scale", op);
    check_style(x, shift, "shift", op);
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
    check_images(x, op);
    check_like(x, dy, "dy", op);
    check_bias(x, b, op);
    check_style(x, scale, "scale", op);
    check_statistic(x, mean, "mean", op);
    check_statistic(x, rstd, "rstd", op);
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

template <class Add>
void each_operator(Add add) {
    add("bias_act", bias_act);
    add("bias_act_grad", bias_act_grad);
    add("bias_act_grad2", bias_act_grad2);
    add("upfirdn2d", upfirdn2d);
    add("scale_bias_lrelu", scale_bias_lrelu);
    add("scale_bias_lrelu_grad", scale_bias_lrelu_grad);
    add("adain", adain);
    add("adain_grad", adain_grad);
}

}  // namespace

#ifdef FICGAN_ON_CPU
TORCH_LIBRARY(ficgan_ops_emulated, m) {
    each_operator([&](const char* name, auto function) { m.def(name, function); });
}
#else
TORCH_LIBRARY_IMPL(ficgan_ops, CUDA, m) {
    each_operator([&](const char* name, auto function) { m.impl(name, function); });
}
#endif
