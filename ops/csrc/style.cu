// The tail of a style layer: demodulation or AdaIN with bias and leaky ReLU, in one pass over memory where that is
// possible. The first kernel is elementwise. The others need sums over a plane: the threads of one block share a plane
// (or a few planes, or a few channels of an image), so that no second launch, no scratch memory and no atomics are
// needed, and read it twice where a result depends on the sums, the second time from the end, which is the part that
// the caches still hold.
#include <math.h>

#include "plane.cuh"

namespace ficgan {
namespace {

template <class A>
struct Params {
    A alpha, gain, eps;
};

// The vectors of double have one element: the type is there for gradient checks, not for speed.
template <class T>
constexpr int kLengthOf = sizeof(T) == 8 ? 1 : kVector<T>;

// --- demodulate, elementwise ----------------------------------------------------------------------------------------

constexpr int kThreads = 256;
constexpr int kUnroll = 2;  // vectors in flight per thread

// How a vector finds its scales and biases, as in bias_act.cu.
enum class Lookup { one, row, each };

struct Elementwise {
    int64_t size;
    Divisor channels, pixels;
    Lookup lookup;
    bool channels_last, aligned;

    // Element i → its plane n·channels + c, and its channel.
    __device__ void locate(int64_t i, int64_t& plane, int64_t& channel) const {
        if (channels_last) {
            int64_t n = i;
            channel = channels.split(n);
            n = pixels.quotient(n);
            plane = n * static_cast<int64_t>(channels.divisor) + channel;
        } else {
            plane = pixels.quotient(i);
            int64_t n = plane;
            channel = channels.split(n);
        }
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_bias_lrelu_kernel(const Elementwise e, const Params<Accum<T>> p, const T* __restrict__ x,
                            const T* __restrict__ scale, const T* __restrict__ b, T* __restrict__ y) {
    using A = Accum<T>;
    constexpr int kLength = kVector<T>;
    const int64_t stride = int64_t{kThreads} * kLength;
    for (int64_t first = (int64_t{blockIdx.x} * kUnroll * kThreads + threadIdx.x) * kLength; first < e.size;
         first += gridDim.x * kUnroll * stride) {
        Pack<T, kLength> held[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
            held[u] = load_some<kLength>(x + first + u * stride, e.size - first - u * stride, e.aligned);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const int64_t i = first + u * stride;
            if (i >= e.size) break;
            A factor[kLength], shift[kLength];
            int64_t plane, channel;
            e.locate(i, plane, channel);
            if (e.lookup == Lookup::row) {
                const Pack<T, kLength> scales = load<kLength>(scale + plane), biases = load<kLength>(b + channel);
#pragma unroll
                for (int k = 0; k < kLength; ++k) factor[k] = widen(scales.v[k]), shift[k] = widen(biases.v[k]);
            } else {
#pragma unroll
                for (int k = 0; k < kLength; ++k) {
                    if (k > 0 && e.lookup == Lookup::one) {
                        factor[k] = factor[0], shift[k] = shift[0];
                        continue;
                    }
                    if (i + k < e.size) e.locate(i + k, plane, channel);
                    factor[k] = widen(scale[plane]), shift[k] = widen(b[channel]);
                }
            }
#pragma unroll
            for (int k = 0; k < kLength; ++k)
                held[u].v[k] = narrow<T>(p.gain * lrelu(widen(held[u].v[k]) * factor[k] + shift[k], p.alpha));
            store_some<kLength>(y + i, held[u], e.size - i, e.aligned);
        }
    }
}

// --- its gradient ---------------------------------------------------------------------------------------------------

template <class T, int kLength, bool kLast>
__global__ void __launch_bounds__(kMostThreads)
    scale_bias_lrelu_grad_kernel(const Planes s, const Params<Accum<T>> p, const T* __restrict__ dy,
                                 const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ scale,
                                 T* __restrict__ dx, Accum<T>* __restrict__ dscale, Accum<T>* __restrict__ dbias) {
    using A = Accum<T>;
    using Mine = Part<kLength, kLast>;
    constexpr int kChannels = Mine::kChannels;
    __shared__ A scratch[kScratch];
    for (int64_t unit = blockIdx.x; unit < s.units; unit += gridDim.x) {
        const Mine part = Mine::of(s, unit);
        A factor[kChannels], sum_x[kChannels] = {}, sum[kChannels] = {};
#pragma unroll
        for (int k = 0; k < kChannels; ++k) factor[k] = part.active(s) ? widen(scale[part.plane + k]) : A(0);
#pragma unroll 2
        for (int64_t item = part.first; item < part.count; item += part.step) {
            const int64_t at = part.offset(item);
            Pack<T, kLength> g = load<kLength>(dy + at);
            const Pack<T, kLength> in = load<kLength>(x + at), out = load<kLength>(y + at);
#pragma unroll
            for (int k = 0; k < kLength; ++k) {
                const int c = Mine::of_element(k);
                const A inner = widen(g.v[k]) * (widen(out.v[k]) > 0 ? p.gain : p.gain * p.alpha);
                sum_x[c] += inner * widen(in.v[k]);
                sum[c] += inner;
                g.v[k] = narrow<T>(inner * factor[c]);
            }
            store<kLength>(dx + at, g);
        }
        sum_over_plane<A, kChannels, kLast>(sum_x, s, scratch);
        sum_over_plane<A, kChannels, kLast>(sum, s, scratch);
        if (part.active(s) && part.first == 0) {
#pragma unroll
            for (int k = 0; k < kChannels; ++k) {
                dscale[part.plane + k] = sum_x[k];
                dbias[part.plane + k] = sum[k];
            }
        }
    }
}

// --- adain ----------------------------------------------------------------------------------------------------------

template <class T, int kLength, bool kLast>
__global__ void __launch_bounds__(kMostThreads)
    adain_kernel(const Planes s, const Params<Accum<T>> p, const T* __restrict__ x, const T* __restrict__ b,
                 const T* __restrict__ scale, const T* __restrict__ shift, T* __restrict__ y,
                 Accum<T>* __restrict__ mean, Accum<T>* __restrict__ rstd) {
    using A = Accum<T>;
    using Mine = Part<kLength, kLast>;
    constexpr int kChannels = Mine::kChannels;
    __shared__ A scratch[kScratch];
    for (int64_t unit = blockIdx.x; unit < s.units; unit += gridDim.x) {
        const Mine part = Mine::of(s, unit);
        A bias[kChannels];
#pragma unroll
        for (int k = 0; k < kChannels; ++k) bias[k] = part.active(s) ? widen(b[part.channel + k]) : A(0);

        // Welford's running mean and sum of squared deviations, for each place in the vector on its own: the places
        // share the count, and with it the division.
        A place_mean[kLength] = {}, place_squares[kLength] = {}, seen = 0;
#pragma unroll 2
        for (int64_t item = part.first; item < part.count; item += part.step) {
            const Pack<T, kLength> in = load<kLength>(x + part.offset(item));
            seen += 1;
            const A share = 1 / seen;
#pragma unroll
            for (int k = 0; k < kLength; ++k) {
                const A a = p.gain * lrelu(widen(in.v[k]) + bias[Mine::of_element(k)], p.alpha);
                const A deviation = a - place_mean[k];
                place_mean[k] += deviation * share;
                place_squares[k] += deviation * (a - place_mean[k]);
            }
        }

        // Merged exactly as in a two-pass computation: Σ (a − m)² = Σ_places squares + seen · (place_mean − m)².
        const A pixels = static_cast<A>(s.pixels > 0 ? s.pixels : 1);
        A m[kChannels] = {}, r[kChannels] = {};
#pragma unroll
        for (int k = 0; k < kLength; ++k) m[Mine::of_element(k)] += seen * place_mean[k];
        sum_over_plane<A, kChannels, kLast>(m, s, scratch);
#pragma unroll
        for (int k = 0; k < kChannels; ++k) m[k] /= pixels;
#pragma unroll
        for (int k = 0; k < kLength; ++k) {
            const A apart = place_mean[k] - m[Mine::of_element(k)];
            r[Mine::of_element(k)] += place_squares[k] + seen * apart * apart;
        }
        sum_over_plane<A, kChannels, kLast>(r, s, scratch);
        A factor[kChannels], offset[kChannels];
#pragma unroll
        for (int k = 0; k < kChannels; ++k) {
            r[k] = 1 / sqrt(r[k] / pixels + p.eps);
            factor[k] = part.active(s) ? widen(scale[part.plane + k]) * r[k] : A(0);
            offset[k] = part.active(s) ? widen(shift[part.plane + k]) : A(0);
        }
        if (part.active(s) && part.first == 0) {
#pragma unroll
            for (int k = 0; k < kChannels; ++k) {
                mean[part.plane + k] = m[k];
                rstd[part.plane + k] = r[k];
            }
        }

        const int64_t items = (part.count - part.first + part.step - 1) / part.step;
#pragma unroll 2
        for (int64_t item = part.first + (items - 1) * part.step; item >= part.first; item -= part.step) {
            const int64_t at = part.offset(item);
            Pack<T, kLength> pack = load<kLength>(x + at);
#pragma unroll
            for (int k = 0; k < kLength; ++k) {
                const int c = Mine::of_element(k);
                const A a = p.gain * lrelu(widen(pack.v[k]) + bias[c], p.alpha);
                pack.v[k] = narrow<T>((a - m[c]) * factor[c] + offset[c]);
            }
            store<kLength>(y + at, pack);
        }
    }
}

// --- its gradient ---------------------------------------------------------------------------------------------------

// With â = (a − mean) · rstd: dshift = Σ dy, dscale = Σ dy · â, and
// da = scale · rstd · (dy − dshift / pixels − â · dscale / pixels); dx = da · gain · lrelu′(x + b); dbias = Σ dx.
template <class T, int kLength, bool kLast>
__global__ void __launch_bounds__(kMostThreads)
    adain_grad_kernel(const Planes s, const Params<Accum<T>> p, const T* __restrict__ dy, const T* __restrict__ x,
                      const T* __restrict__ b, const T* __restrict__ scale, const Accum<T>* __restrict__ mean,
                      const Accum<T>* __restrict__ rstd, T* __restrict__ dx, Accum<T>* __restrict__ dscale,
                      Accum<T>* __restrict__ dshift, Accum<T>* __restrict__ dbias) {
    using A = Accum<T>;
    using Mine = Part<kLength, kLast>;
    constexpr int kChannels = Mine::kChannels;
    __shared__ A scratch[kScratch];
    for (int64_t unit = blockIdx.x; unit < s.units; unit += gridDim.x) {
        const Mine part = Mine::of(s, unit);
        A bias[kChannels], m[kChannels], r[kChannels];
#pragma unroll
        for (int k = 0; k < kChannels; ++k) {
            bias[k] = part.active(s) ? widen(b[part.channel + k]) : A(0);
            m[k] = part.active(s) ? mean[part.plane + k] : A(0);
            r[k] = part.active(s) ? rstd[part.plane + k] : A(0);
        }
        A sum[kChannels] = {}, sum_a[kChannels] = {};
#pragma unroll 2
        for (int64_t item = part.first; item < part.count; item += part.step) {
            const int64_t at = part.offset(item);
            const Pack<T, kLength> g = load<kLength>(dy + at), in = load<kLength>(x + at);
#pragma unroll
            for (int k = 0; k < kLength; ++k) {
                const int c = Mine::of_element(k);
                const A a = p.gain * lrelu(widen(in.v[k]) + bias[c], p.alpha);
                sum[c] += widen(g.v[k]);
                sum_a[c] += widen(g.v[k]) * ((a - m[c]) * r[c]);
            }
        }
        sum_over_plane<A, kChannels, kLast>(sum, s, scratch);
        sum_over_plane<A, kChannels, kLast>(sum_a, s, scratch);
        const A pixels = static_cast<A>(s.pixels > 0 ? s.pixels : 1);
        A factor[kChannels], sum_dx[kChannels] = {};
#pragma unroll
        for (int k = 0; k < kChannels; ++k) {
            factor[k] = part.active(s) ? widen(scale[part.plane + k]) * r[k] : A(0);
            if (part.active(s) && part.first == 0) {
                dshift[part.plane + k] = sum[k];
                dscale[part.plane + k] = sum_a[k];
            }
            sum[k] /= pixels;
            sum_a[k] /= pixels;
        }

        const int64_t items = (part.count - part.first + part.step - 1) / part.step;
#pragma unroll 2
        for (int64_t item = part.first + (items - 1) * part.step; item >= part.first; item -= part.step) {
            const int64_t at = part.offset(item);
            Pack<T, kLength> g = load<kLength>(dy + at);
            const Pack<T, kLength> in = load<kLength>(x + at);
#pragma unroll
            for (int k = 0; k < kLength; ++k) {
                const int c = Mine::of_element(k);
                const A v = widen(in.v[k]) + bias[c];
                const A normal = (p.gain * lrelu(v, p.alpha) - m[c]) * r[c];
                const A da = factor[c] * (widen(g.v[k]) - sum[c] - normal * sum_a[c]);
                const A result = da * (v > 0 ? p.gain : p.gain * p.alpha);
                sum_dx[c] += result;
                g.v[k] = narrow<T>(result);
            }
            store<kLength>(dx + at, g);
        }
        sum_over_plane<A, kChannels, kLast>(sum_dx, s, scratch);
        if (part.active(s) && part.first == 0) {
#pragma unroll
            for (int k = 0; k < kChannels; ++k) dbias[part.plane + k] = sum_dx[k];
        }
    }
}

// --- launches -------------------------------------------------------------------------------------------------------

template <class A>
Params<A> params(const Style& g) {
    return {A(g.alpha), A(g.gain), A(g.eps)};
}

// Calls `body` with the vector's length and whether the layout is channels-last, both as constants, and the launch.
template <class T, class Body>
void with_planes(const Style& g, bool is_aligned, Body body) {
    constexpr int kLength = kLengthOf<T>;
    const bool last = g.layout == Layout::channels_last;
    const bool vectors = is_aligned && (last ? g.channels : g.pixels) % kLength == 0;
    const PlaneLaunch launch = share_planes(g, vectors ? kLength : 1);
    using One = std::integral_constant<int, 1>;
    using Many = std::integral_constant<int, kLength>;
    if (vectors)
        last ? body(Many{}, std::true_type{}, launch) : body(Many{}, std::false_type{}, launch);
    else
        last ? body(One{}, std::true_type{}, launch) : body(One{}, std::false_type{}, launch);
}

bool no_planes(const Style& g) { return g.batch <= 0 || g.channels <= 0; }

}  // namespace

int scale_bias_lrelu(Type type, const Style& g, const void* x, const void* scale, const void* b, void* y,
                     void* stream) {
    if (no_planes(g) || g.pixels <= 0) return static_cast<int>(cudaSuccess);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        constexpr int kLength = kVector<T>;
        const bool last = g.layout == Layout::channels_last;
        const int64_t size = g.batch * g.channels * g.pixels, chunk = int64_t{kThreads} * kUnroll * kLength;
        const Lookup lookup = !last && g.pixels % kLength == 0 ? Lookup::one
                              : last && g.channels % kLength == 0 && aligned(scale, b) ? Lookup::row
                                                                                       : Lookup::each;
        const Elementwise e{size, Divisor(g.channels), Divisor(g.pixels), lookup, last, aligned(x, y)};
        FICGAN_LAUNCH(scale_bias_lrelu_kernel<T>, grid_of((size + chunk - 1) / chunk, 65536), kThreads, stream, e,
                      params<Accum<T>>(g), static_cast<const T*>(x), static_cast<const T*>(scale),
                      static_cast<const T*>(b), static_cast<T*>(y));
    });
}

// The three below write their [N,C] results, sums of nothing, also where there are no pixels.
int scale_bias_lrelu_grad(Type type, const Style& g, const void* dy, const void* x, const void* y, const void* scale,
                          void* dx, void* dscale, void* dbias_per_image, void* stream) {
    if (no_planes(g)) return static_cast<int>(cudaSuccess);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        using A = Accum<T>;
        with_planes<T>(g, aligned(dy, x, y, dx), [&](auto length, auto last, const PlaneLaunch& launch) {
            FICGAN_LAUNCH((scale_bias_lrelu_grad_kernel<T, decltype(length)::value, decltype(last)::value>),
                          launch.grid, launch.threads, stream, launch.planes, params<A>(g),
                          static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(y),
                          static_cast<const T*>(scale), static_cast<T*>(dx), static_cast<A*>(dscale),
                          static_cast<A*>(dbias_per_image));
        });
    });
}

int adain(Type type, const Style& g, const void* x, const void* b, const void* scale, const void* shift, void* y,
          void* mean, void* rstd, void* stream) {
    if (no_planes(g)) return static_cast<int>(cudaSuccess);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        using A = Accum<T>;
        with_planes<T>(g, aligned(x, y), [&](auto length, auto last, const PlaneLaunch& launch) {
            FICGAN_LAUNCH((adain_kernel<T, decltype(length)::value, decltype(last)::value>), launch.grid,
                          launch.threads, stream, launch.planes, params<A>(g), static_cast<const T*>(x),
                          static_cast<const T*>(b), static_cast<const T*>(scale), static_cast<const T*>(shift),
                          static_cast<T*>(y), static_cast<A*>(mean), static_cast<A*>(rstd));
        });
    });
}

int adain_grad(Type type, const Style& g, const void* dy, const void* x, const void* b, const void* scale,
               const void* mean, const void* rstd, void* dx, void* dscale, void* dshift, void* dbias_per_image,
               void* stream) {
    if (no_planes(g)) return static_cast<int>(cudaSuccess);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        using A = Accum<T>;
        with_planes<T>(g, aligned(dy, x, dx), [&](auto length, auto last, const PlaneLaunch& launch) {
            FICGAN_LAUNCH((adain_grad_kernel<T, decltype(length)::value, decltype(last)::value>), launch.grid,
                          launch.threads, stream, launch.planes, params<A>(g), static_cast<const T*>(dy),
                          static_cast<const T*>(x), static_cast<const T*>(b), static_cast<const T*>(scale),
                          static_cast<const A*>(mean), static_cast<const A*>(rstd), static_cast<T*>(dx),
                          static_cast<A*>(dscale), static_cast<A*>(dshift), static_cast<A*>(dbias_per_image));
        });
    });
}

}  // namespace ficgan
