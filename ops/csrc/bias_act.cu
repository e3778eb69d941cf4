// Bias, activation, gain and clamp, with the first and second derivative. Bound by memory: a thread moves two vectors
// of 16 bytes per tensor at a time, and finds the bias of a vector (where its length does not fit the shape, of each
// element) by two divisions, done by multiplication.
#include <math.h>

#include "numeric.cuh"

namespace ficgan {
namespace {

constexpr int kThreads = 256;
// Vectors in flight per thread and tensor: at 1024 threads an SM 32 KB, where latency times bandwidth asks for some 25.
constexpr int kUnroll = 2;

// linear, relu and lrelu are one kind that differs in the slope below 0.
enum class Kind { piecewise, sigmoid, tanh, swish, softplus };

// How a vector finds its biases.
enum class Bias {
    none,
    one,   // all its elements have one channel: the vector's length divides `inner`
    row,   // its elements have consecutive channels: inner is 1 and the length divides `channels`
    each,  // every element looks up its own
};

template <class A>
struct Params {
    A slope, gain, limit;  // limit: infinity for none
    int64_t size;
    Divisor inner, channels;
    Bias bias;
    bool aligned;
};

// act, act′ and act″ of the smooth kinds. They go through e = exp(−|v|) ≤ 1, which neither overflows nor cancels:
// sigmoid′ = e / (1 + e)², and sigmoid″ = sigmoid′ · (1 − 2·sigmoid) = −sign(v) · sigmoid′ · (1 − e) / (1 + e).
template <class A>
struct Sigmoid {
    A value, slope, curvature;
    __device__ explicit Sigmoid(A v) {
        const A e = exp(-fabs(v)), r = 1 / (1 + e);
        value = v < 0 ? e * r : r;
        slope = e * r * r;
        curvature = slope * (v < 0 ? 1 - e : e - 1) * r;
    }
};

template <Kind kKind, int kOrder, class A>
__device__ inline A smooth(A v) {
    if constexpr (kKind == Kind::sigmoid) {
        const Sigmoid<A> s(v);
        return kOrder == 0 ? s.value : kOrder == 1 ? s.slope : s.curvature;
    } else if constexpr (kKind == Kind::swish) {
        const Sigmoid<A> s(v);
        return kOrder == 0 ? v * s.value : kOrder == 1 ? s.value + v * s.slope : 2 * s.slope + v * s.curvature;
    } else if constexpr (kKind == Kind::softplus) {
        if constexpr (kOrder == 0) return (v < 0 ? A(0) : v) + log1p(exp(-fabs(v)));
        const Sigmoid<A> s(v);
        return kOrder == 1 ? s.value : s.slope;
    } else {  // tanh(v) = 2·sigmoid(2v) − 1
        if constexpr (kOrder == 0) return tanh(v);
        const Sigmoid<A> s(2 * v);
        return kOrder == 1 ? 4 * s.slope : 8 * s.curvature;
    }
}

// y, or its derivative times `dy` (and `ddx`): what one element needs. `v` is the output y where the piecewise kind
// asks for its derivative, and x + b otherwise.
template <Kind kKind, int kOrder, class A>
__device__ inline A element(const Params<A>& p, A v, A dy, A ddx) {
    if constexpr (kKind == Kind::piecewise && kOrder == 1) {
        // Chosen, not multiplied, where relu's slope is 0: 0 · ∞ would be no number.
        const A slope = v > 0 ? A(1) : p.slope;
        return slope == 0 || fabs(v) >= p.limit ? A(0) : dy * (p.gain * slope);
    } else {
        A y;
        if constexpr (kKind == Kind::piecewise)
            y = (v < 0 ? (p.slope == 0 ? A(0) : v * p.slope) : v) * p.gain;
        else
            y = smooth<kKind, 0>(v) * p.gain;
        if constexpr (kOrder == 0) return y > p.limit ? p.limit : y < -p.limit ? -p.limit : y;  // keeps a NaN
        if (fabs(y) >= p.limit) return 0;
        const A d = p.gain * smooth<kKind, kOrder>(v);
        return kOrder == 1 ? dy * d : ddx * dy * d;
    }
}

// The biases of the vector of `kLength` elements that starts at element i.
template <int kLength, class T, class A>
__device__ inline void biases(const Params<A>& p, const T* b, int64_t i, A (&out)[kLength]) {
    if (p.bias == Bias::none) {
#pragma unroll
        for (int k = 0; k < kLength; ++k) out[k] = 0;
    } else if (p.bias == Bias::row) {
        int64_t rest = i;
        const Pack<T, kLength> row = load<kLength>(b + p.channels.split(rest));
#pragma unroll
        for (int k = 0; k < kLength; ++k) out[k] = widen(row.v[k]);
    } else {
        int64_t rest = p.inner.quotient(i);
        out[0] = widen(b[p.channels.split(rest)]);
#pragma unroll
        for (int k = 1; k < kLength; ++k) {
            out[k] = out[0];
            if (p.bias == Bias::each) {
                rest = p.inner.quotient(i + k);
                out[k] = widen(b[p.channels.split(rest)]);
            }
        }
    }
}

// in[0..kOrder]: x; dy, saved; or ddx, dy, x.
template <class T>
struct Inputs {
    const T* in[3];
};

template <class T, Kind kKind, int kOrder>
__global__ void __launch_bounds__(kThreads)
    bias_act_kernel(const Params<Accum<T>> p, const Inputs<T> inputs, const T* __restrict__ b, T* __restrict__ out) {
    using A = Accum<T>;
    constexpr int kLength = kVector<T>;
    constexpr int kInputs = kOrder + 1;
    const int64_t stride = int64_t{kThreads} * kLength;  // from one vector of a thread to its next
    for (int64_t first = (int64_t{blockIdx.x} * kUnroll * kThreads + threadIdx.x) * kLength; first < p.size;
         first += gridDim.x * kUnroll * stride) {
        Pack<T, kLength> held[kUnroll][kInputs];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
#pragma unroll
            for (int n = 0; n < kInputs; ++n) {
                const int64_t i = first + u * stride;
                held[u][n] = load_some<kLength>(inputs.in[n] + i, p.size - i, p.aligned);
            }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const int64_t i = first + u * stride;
            if (i >= p.size) break;
            A bias[kLength];
            biases(p, b, i, bias);
            Pack<T, kLength> result;
#pragma unroll
            for (int k = 0; k < kLength; ++k) {
                const A v = widen(held[u][kOrder].v[k]) + bias[k];
                const A dy = kOrder ? widen(held[u][kOrder ? kOrder - 1 : 0].v[k]) : A(0);
                const A ddx = kOrder == 2 ? widen(held[u][0].v[k]) : A(0);
                result.v[k] = narrow<T>(element<kKind, kOrder>(p, v, dy, ddx));
            }
            store_some<kLength>(out + i, result, p.size - i, p.aligned);
        }
    }
}

template <class T, int kOrder>
void start(const BiasAct& s, const Inputs<T>& inputs, const T* b, T* out, void* stream) {
    using A = Accum<T>;
    constexpr int kLength = kVector<T>;
    const bool smooth_kind = s.act != Activation::linear && s.act != Activation::relu && s.act != Activation::lrelu;
    Params<A> p{A(s.act == Activation::linear ? 1 : s.act == Activation::relu ? 0 : s.alpha),
                A(s.gain),
                s.limit < 0 ? A(HUGE_VAL) : A(s.limit),
                s.size,
                Divisor(s.inner),
                Divisor(s.channels),
                Bias::each,
                aligned(inputs.in[0], inputs.in[1], inputs.in[2], out)};
    // The saved output holds the limit as rounded to T, and is recognised as clamped by that number.
    if (kOrder == 1 && !smooth_kind && s.limit >= 0) p.limit = widen(narrow<T>(p.limit));
    if (b == nullptr || (kOrder == 1 && !smooth_kind))
        p.bias = Bias::none;
    else if (s.inner % kLength == 0)
        p.bias = Bias::one;
    else if (s.inner == 1 && s.channels % kLength == 0 && aligned(b))
        p.bias = Bias::row;
    const int64_t chunk = int64_t{kThreads} * kUnroll * kLength;
    const unsigned grid = grid_of((s.size + chunk - 1) / chunk, 65536);
    switch (s.act) {
        case Activation::sigmoid:
            FICGAN_LAUNCH((bias_act_kernel<T, Kind::sigmoid, kOrder>), grid, kThreads, stream, p, inputs, b, out);
            break;
        case Activation::tanh:
            FICGAN_LAUNCH((bias_act_kernel<T, Kind::tanh, kOrder>), grid, kThreads, stream, p, inputs, b, out);
            break;
        case Activation::swish:
            FICGAN_LAUNCH((bias_act_kernel<T, Kind::swish, kOrder>), grid, kThreads, stream, p, inputs, b, out);
            break;
        case Activation::softplus:
            FICGAN_LAUNCH((bias_act_kernel<T, Kind::softplus, kOrder>), grid, kThreads, stream, p, inputs, b, out);
            break;
        default:
            if constexpr (kOrder < 2)
                FICGAN_LAUNCH((bias_act_kernel<T, Kind::piecewise, kOrder>), grid, kThreads, stream, p, inputs, b, out);
    }
}

template <int kOrder>
int start_any(Type type, const BiasAct& s, const void* i0, const void* i1, const void* i2, const void* b, void* out,
              void* stream) {
    const int act = static_cast<int>(s.act);
    if (act < 0 || act > static_cast<int>(Activation::softplus)) return static_cast<int>(cudaErrorInvalidValue);
    if (kOrder == 2 && act < static_cast<int>(Activation::sigmoid)) return static_cast<int>(cudaErrorInvalidValue);
    if (s.size <= 0) return static_cast<int>(cudaSuccess);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        const Inputs<T> inputs{{static_cast<const T*>(i0), static_cast<const T*>(i1), static_cast<const T*>(i2)}};
        start<T, kOrder>(s, inputs, static_cast<const T*>(b), static_cast<T*>(out), stream);
    });
}

}  // namespace

int bias_act(Type type, const BiasAct& s, const void* x, const void* b, void* y, void* stream) {
    return start_any<0>(type, s, x, nullptr, nullptr, b, y, stream);
}

int bias_act_grad(Type type, const BiasAct& s, const void* dy, const void* saved, const void* b, void* dx,
                  void* stream) {
    return start_any<1>(type, s, dy, saved, nullptr, b, dx, stream);
}

int bias_act_grad2(Type type, const BiasAct& s, const void* ddx, const void* dy, const void* x, const void* b, void* dx,
                   void* stream) {
    return start_any<2>(type, s, ddx, dy, x, b, dx, stream);
}

}  // namespace ficgan
