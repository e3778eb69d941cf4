// Numbers on the device: accumulators, vectors of 16 bytes, division by a constant, the leaky ReLU.
#pragma once
#include <cstdint>
#include <cstring>

#include "launch.cuh"

namespace ficgan {

// Half types are computed in float32, the others in themselves.
template <class T>
using Accum = std::conditional_t<std::is_same_v<T, double>, double, float>;

__host__ __device__ inline float widen(__half v) { return __half2float(v); }
__host__ __device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__host__ __device__ inline float widen(float v) { return v; }
__host__ __device__ inline double widen(double v) { return v; }

template <class T>
__host__ __device__ inline T narrow(Accum<T> v) {
    if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn(v);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn(v);
    else
        return v;
}

// The widest load and store of a thread is 16 bytes.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T v[N];
};

// N elements from p, which must be a multiple of the pack's alignment.
template <int N, class T>
__device__ inline Pack<T, N> load(const T* p) {
    return *reinterpret_cast<const Pack<T, N>*>(p);
}

template <int N, class T>
__device__ inline void store(T* p, const Pack<T, N>& pack) {
    *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// A pack as the machine words it travels in: words are cheaper than halves to set to zero under a condition.
template <class T, int N, int kBytes = static_cast<int>(sizeof(T)) * N>
using Words = std::conditional_t<
    kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, unsigned, unsigned short>>>;

template <int N, class T>
__device__ inline Words<T, N> load_if(bool condition, const T* p) {
    Words<T, N> words{};
    if (condition) words = *reinterpret_cast<const Words<T, N>*>(p);
    return words;
}

template <class T, int N>
__device__ inline Pack<T, N> unpack(const Words<T, N>& words) {
    Pack<T, N> pack;
    memcpy(&pack, &words, sizeof(words));
    return pack;
}

// `load` and `store` for any p, and for the first `count` elements only (the rest is zero, or is not written).
template <int N, class T>
__device__ inline Pack<T, N> load_some(const T* p, int64_t count, bool is_aligned) {
    if (is_aligned && count >= N) return load<N>(p);
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.v[k] = k < count ? p[k] : narrow<T>(0);
    return pack;
}

template <int N, class T>
__device__ inline void store_some(T* p, const Pack<T, N>& pack, int64_t count, bool is_aligned) {
    if (is_aligned && count >= N) {
        store<N>(p, pack);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; ++k)
        if (k < count) p[k] = pack.v[k];
}

// Division of n ≥ 0 by d ≥ 1. Below 2³¹ it is one multiplication: with s = ⌈log2 d⌉ and m = ⌊2^(31+s) / d⌋ + 1,
// m·d exceeds 2^(31+s) by at most d, so n·m / 2^(31+s) exceeds n / d by less than 2^−s ≤ 1 / d and has the same floor.
// (Granlund and Montgomery 1994.) Above, the hardware's slow division.
struct Divisor {
    uint64_t divisor;
    uint32_t magic;
    int shift;  // 0: too large for the multiplication

    explicit Divisor(int64_t d) : divisor(static_cast<uint64_t>(d < 1 ? 1 : d)), magic(0), shift(0) {
        if (divisor >> 31) return;
        int log2 = 0;
        while ((uint64_t{1} << log2) < divisor) ++log2;
        shift = 31 + log2;
        magic = static_cast<uint32_t>((uint64_t{1} << shift) / divisor + 1);
    }

    __device__ int64_t quotient(int64_t n) const {
        const uint64_t u = static_cast<uint64_t>(n);
        if (shift && !(u >> 31)) return static_cast<int64_t>((static_cast<uint32_t>(u) * uint64_t{magic}) >> shift);
        return static_cast<int64_t>(u / divisor);
    }

    // Replaces n by its quotient and returns the remainder.
    __device__ int64_t split(int64_t& n) const {
        const int64_t q = quotient(n), r = n - q * static_cast<int64_t>(divisor);
        n = q;
        return r;
    }
};

template <class A>
__device__ inline A lrelu(A v, A alpha) {
    return v > 0 ? v : v * alpha;
}

}  // namespace ficgan
