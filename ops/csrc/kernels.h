// The CUDA kernels of ficgan.ops, as plain functions of pointers and sizes; no torch header is needed to compile them.
//
// Every launcher puts its work on `stream` (a cudaStream_t) and returns at once; it returns a cudaError_t as int, 0 for
// success. Sizes are 64-bit, an empty tensor is no work. Half types are computed and accumulated in float32, float64
// in float64. "Layout" is that of the 4-D tensors of one call, all alike: contiguous NCHW, or channels-last. No output
// may overlap an input.
#pragma once
#include <cstdint>

namespace ficgan {

enum class Type : int { f16 = 0, bf16 = 1, f32 = 2, f64 = 3 };
enum class Layout : int { contiguous = 0, channels_last = 1 };

// --- bias_act: y = gain · act(x + b), act(v) = v, or slope · v below 0 -----------------------------------------------

struct BiasAct {
    double slope, gain;
    int64_t size;      // elements of x
    int64_t channels;  // elements of b; channel of element i is (i / inner) % channels
    int64_t inner;
};

// x [size], b [channels] or nullptr (same type as x) → y [size].
int bias_act(Type, const BiasAct&, const void* x, const void* b, void* y, void* stream);

// dx = dy · gain · act′(x + b); the slope is read off the output y.
int bias_act_grad(Type, const BiasAct&, const void* dy, const void* y, void* dx, void* stream);

// --- upfirdn2d: insert zeros, pad, filter, subsample ----------------------------------------------------------------

struct Upfirdn2d {
    Layout layout;
    int64_t batch, channels;
    int64_t in_height, in_width, out_height, out_width;
    int taps, up, down;      // along both axes
    int64_t pad_x0, pad_y0;  // negative: crop; padding at the far sides follows from the output's size
    int flip;                // correlate instead of convolve
    double gain;
};

// x [N,C,H,W], f [taps] float32 (float64 when Type is f64) in device memory → y [N,C,H',W'].
// y[m,n] = gain · Σ_pq f'[p] · f'[q] · u[m·down + p − pad_y0, n·down + q − pad_x0], where u is the zero-inserted x, and f'
// is f, mirrored unless `flip`.
int upfirdn2d(Type, const Upfirdn2d&, const void* x, const void* f, void* y, void* stream);

// --- the tail of a style layer, fused -------------------------------------------------------------------------------

struct Style {
    Layout layout;
    int64_t batch, channels, pixels;  // pixels = H · W
    double alpha, gain;               // of the leaky ReLU
    double eps;                       // adain: added to the variance
};

// demodulate: y = gain · lrelu(x · scale + b); x [N,C,H,W], scale [N,C], b [C], all of one type.
int scale_bias_lrelu(Type, const Style&, const void* x, const void* scale, const void* b, void* y, void* stream);

// Its gradient: dx [N,C,H,W]; dscale and dbias_per_image [N,C] in float32 (float64 when Type is f64), both written here
// (Σ over pixels; the gradient of b is the sum of dbias_per_image over N). `y` is the output; the sign is read off it.
int scale_bias_lrelu_grad(Type, const Style&, const void* dy, const void* x, const void* y, const void* scale, void* dx,
                          void* dscale, void* dbias_per_image, void* stream);

// adain: a = gain · lrelu(x + b); y = scale · (a − mean_nc(a)) / sqrt(var_nc(a) + eps) + shift, var biased.
// scale, shift [N,C] of x's type; mean and rstd [N,C] float32 (float64) are written, for the gradient.
int adain(Type, const Style&, const void* x, const void* b, const void* scale, const void* shift, void* y, void* mean,
          void* rstd, void* stream);

// Its gradient: dx [N,C,H,W]; dscale, dshift, dbias_per_image [N,C] in float32 (float64), all written here.
int adain_grad(Type, const Style&, const void* dy, const void* x, const void* b, const void* scale, const void* mean,
               const void* rstd, void* dx, void* dscale, void* dshift, void* dbias_per_image, void* stream);

}  // namespace ficgan
