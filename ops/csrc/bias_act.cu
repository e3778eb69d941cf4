// Bias, two-sided linear activation and gain, and the first derivative. Bound by memory: a thread moves two
// vectors of 16 bytes per tensor at a time, and finds the bias of a vector (where its length does not fit the shape, of
// each element) by two divisions, done by multiplication.
#include "numeric.cuh"

namespace ficgan {
namespace {

constexpr int kThreads = 256;
// Vectors in flight per thread and tensor: at 1024 threads an SM 32 KB, where latency times bandwidth asks for some 25.
constexpr int kUnroll = 2;

// How a vector finds its biases.
enum class Bias {
    none,
    one,   // all its elements have one channel: the vector's length divides `inner`
    row,   // its elements have consecutive channels: inner is 1 and the length divides `channels`
    each,  // every element looks up its own
};

template <class A>
struct Params {
    A slope, gain;
    int64_t size;
    Divisor inner, channels;
    Bias bias;
    bool aligned;
};

template <class A>
__device__ inline A value(const Params<A>& p, A v) {
    return (v < 0 ? v * p.slope : v) * p.gain;
}

template <class A>
__device__ inline A gradient(const Params<A>& p, A y, A dy) {
    return dy * (p.gain * (y > 0 ? A(1) : p.slope));
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
#pragma unroll
        for (int k = 0; k < kLength; ++k) {
            if (k > 0 && p.bias == Bias::one) {
                out[k] = out[0];
                continue;
            }
            int64_t rest = p.inner.quotient(i + k);
            out[k] = widen(b[p.channels.split(rest)]);
        }
    }
}

// `in` is x, with biases b, and without `dy`; else the output y, and no biases.
template <class T, bool kGradient>
__global__ void __launch_bounds__(kThreads)
    bias_act_kernel(const Params<Accum<T>> p, const T* __restrict__ in, const T* __restrict__ dy,
                    const T* __restrict__ b, T* __restrict__ out) {
    using A = Accum<T>;
    constexpr int kLength = kVector<T>;
    const int64_t stride = int64_t{kThreads} * kLength;  // from one vector of a thread to its next
    for (int64_t first = (int64_t{blockIdx.x} * kUnroll * kThreads + threadIdx.x) * kLength; first < p.size;
         first += gridDim.x * kUnroll * stride) {
        Pack<T, kLength> held[kUnroll], gradients[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const int64_t i = first + u * stride;
            held[u] = load_some<kLength>(in + i, p.size - i, p.aligned);
            if constexpr (kGradient) gradients[u] = load_some<kLength>(dy + i, p.size - i, p.aligned);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const int64_t i = first + u * stride;
            if (i >= p.size) break;
            Pack<T, kLength> result;
            if constexpr (kGradient) {
#pragma unroll
                for (int k = 0; k < kLength; ++k)
                    result.v[k] = narrow<T>(gradient<A>(p, widen(held[u].v[k]), widen(gradients[u].v[k])));
            } else {
                A bias[kLength];
                biases(p, b, i, bias);
#pragma unroll
                for (int k = 0; k < kLength; ++k) result.v[k] = narrow<T>(value<A>(p, widen(held[u].v[k]) + bias[k]));
            }
            store_some<kLength>(out + i, result, p.size - i, p.aligned);
        }
    }
}

template <bool kGradient>
int start(Type type, const BiasAct& s, const void* in, const void* dy, const void* b, void* out, void* stream) {
    if (s.size <= 0) return static_cast<int>(cudaSuccess);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        using A = Accum<T>;
        constexpr int kLength = kVector<T>;
        Params<A> p{A(s.slope), A(s.gain), s.size, Divisor(s.inner), Divisor(s.channels), Bias::each,
                    aligned(in, dy, out)};
        if (b == nullptr)
            p.bias = Bias::none;
        else if (s.inner % kLength == 0)
            p.bias = Bias::one;
        else if (s.inner == 1 && s.channels % kLength == 0 && aligned(b))
            p.bias = Bias::row;
        const int64_t chunk = int64_t{kThreads} * kUnroll * kLength;
        FICGAN_LAUNCH((bias_act_kernel<T, kGradient>), grid_of((s.size + chunk - 1) / chunk, 65536), kThreads, stream,
                      p, static_cast<const T*>(in), static_cast<const T*>(dy), static_cast<const T*>(b),
                      static_cast<T*>(out));
    });
}

}  // namespace

int bias_act(Type type, const BiasAct& s, const void* x, const void* b, void* y, void* stream) {
    return start<false>(type, s, x, nullptr, b, y, stream);
}

int bias_act_grad(Type type, const BiasAct& s, const void* dy, const void* y, void* dx, void* stream) {
    return start<true>(type, s, y, dy, nullptr, dx, stream);
}

}  // namespace ficgan
