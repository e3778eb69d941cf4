// Zero-insert, pad, filter, subsample. Every kernel is polyphase: an inserted zero is neither stored nor multiplied.
//
// In channels-last, for filters of 4 taps and the factors up 2 or down 2, a thread computes several neighbouring outputs
// from inputs that it reads once. All else goes through a kernel that computes one output (or one vector of channels) a
// thread.
//
// The up-2 phases are told apart by the launch, not by the thread: outputs are tiled from the one, at −1 or 0, whose
// first tap meets a true sample.
#include "numeric.cuh"

namespace ficgan {
namespace {

constexpr int kTaps = 4;  // the fast kernel's filter is kTaps × kTaps

// Inputs along one axis that `outputs` neighbouring outputs see, the first of them in phase.
__host__ __device__ constexpr int window(int outputs, int up, int down) {
    return ((outputs - 1) * down + kTaps - 1) / up + 1;
}

template <class A>
struct Params {
    Divisor count_0, count_1, count_2;  // how a work item's number splits into coordinates, fastest first
    int64_t work;
    int64_t channels, in_height, in_width, out_height, out_width;
    int64_t pad_x0, pad_y0;
    int lead_x, lead_y;  // outputs by which the first tile starts before 0
    int up, down, taps, flip;
    int lanes_log2;  // channels-last: log2 of the neighbouring vectors of channels that a block takes
    A gain;
};

// f′[p] · f′[q] · gain.
template <class A>
__device__ inline A tap(const Params<A>& s, const A* __restrict__ f, int p, int q) {
    return f[s.flip ? p : s.taps - 1 - p] * f[s.flip ? q : s.taps - 1 - q] * s.gain;
}

// --- channels-last --------------------------------------------------------------------------------------------------

// A thread computes 2×2 outputs of one vector of channels, from up to 5×5 (up 2: 3×3, down 2: 6×6) vectors of 16 bytes.
// Neighbours share most of these through L1: a block covers up to 8 vectors of channels (128 bytes, a cache line),
// 16 outputs in x and as many in y as its threads allow.
constexpr int kPixelThreads = 256, kPixelsX = 8, kPixels = 2;

template <class T, int kUp, int kDown>
__global__ void __launch_bounds__(kPixelThreads, 2)
    pixel_kernel(const Params<Accum<T>> s, const T* __restrict__ x, const Accum<T>* __restrict__ f,
                 T* __restrict__ y) {
    using A = Accum<T>;
    constexpr int kLength = kVector<T>, kWindow = window(kPixels, kUp, kDown);
    A w[kTaps][kTaps];
#pragma unroll
    for (int p = 0; p < kTaps; ++p)
#pragma unroll
        for (int q = 0; q < kTaps; ++q) w[p][q] = tap(s, f, p, q);
    const int lane = threadIdx.x & ((1 << s.lanes_log2) - 1), pixel = threadIdx.x >> s.lanes_log2;
    const int px = pixel % kPixelsX, py = pixel / kPixelsX;
    const int rows = (kPixelThreads >> s.lanes_log2) / kPixelsX;

    const int height = static_cast<int>(s.in_height), width = static_cast<int>(s.in_width);
    const int out_height = static_cast<int>(s.out_height), out_width = static_cast<int>(s.out_width);

    for (int64_t work = blockIdx.x; work < s.work; work += gridDim.x) {
        int64_t n = work;
        const int64_t channel = ((s.count_0.split(n) << s.lanes_log2) + lane) * kLength;
        const int ox = (static_cast<int>(s.count_1.split(n)) * kPixelsX + px) * kPixels - s.lead_x;
        const int oy = (static_cast<int>(s.count_2.split(n)) * rows + py) * kPixels - s.lead_y;
        if (ox >= out_width || oy >= out_height) continue;
        const int col = (ox * kDown - static_cast<int>(s.pad_x0)) / kUp;  // exact, by the choice of the lead
        const int row = (oy * kDown - static_cast<int>(s.pad_y0)) / kUp;
        const T* line = x + ((n * height + row) * width + col) * s.channels + channel;
        A acc[kPixels][kPixels][kLength] = {};
#pragma unroll
        for (int r = 0; r < kWindow; ++r) {
            Words<T, kLength> seen[kWindow];
#pragma unroll
            for (int c = 0; c < kWindow; ++c)
                // As unsigned numbers the negative ones are too large.
                seen[c] = load_if<kLength>(static_cast<unsigned>(row + r) < static_cast<unsigned>(height) &&
                                               static_cast<unsigned>(col + c) < static_cast<unsigned>(width),
                                           line + c * s.channels);
            line += width * s.channels;
#pragma unroll
            for (int c = 0; c < kWindow; ++c) {
                const Pack<T, kLength> pack = unpack<T, kLength>(seen[c]);
#pragma unroll
                for (int i = 0; i < kPixels; ++i) {
                    const int p = r * kUp - i * kDown;
                    if (p < 0 || p >= kTaps) continue;
#pragma unroll
                    for (int j = 0; j < kPixels; ++j) {
                        const int q = c * kUp - j * kDown;
                        if (q < 0 || q >= kTaps) continue;
#pragma unroll
                        for (int k = 0; k < kLength; ++k) acc[i][j][k] += w[p][q] * widen(pack.v[k]);
                    }
                }
            }
        }
        T* target = y + n * s.out_height * s.out_width * s.channels + channel;
#pragma unroll
        for (int i = 0; i < kPixels; ++i)
#pragma unroll
            for (int j = 0; j < kPixels; ++j) {
                if (oy + i < 0 || oy + i >= out_height || ox + j < 0 || ox + j >= out_width) continue;
                Pack<T, kLength> pack;
#pragma unroll
                for (int k = 0; k < kLength; ++k) pack.v[k] = narrow<T>(acc[i][j][k]);
                store<kLength>(target + ((oy + i) * s.out_width + ox + j) * s.channels, pack);
            }
    }
}

// --- any filter, any factors ----------------------------------------------------------------------------------------

constexpr int kAnyThreads = 256;

// The first tap that meets a true sample inside, and that sample: the zero-inserted x has its samples at multiples of
// `up`, and tap p of an output meets place start + p.
__device__ inline void first_tap(int64_t start, int up, int& p, int64_t& sample) {
    sample = start <= 0 ? 0 : (start + up - 1) / up;
    const int64_t distance = sample * up - start;
    p = distance < INT32_MAX ? static_cast<int>(distance) : INT32_MAX;
}

// One thread, kLength channels of one output: kLength > 1 for channels-last alone.
template <class T, int kLength>
__global__ void __launch_bounds__(kAnyThreads)
    any_kernel(const Params<Accum<T>> s, bool channels_last, const T* __restrict__ x, const Accum<T>* __restrict__ f,
               T* __restrict__ y) {
    using A = Accum<T>;
    const int64_t step_x = channels_last ? s.channels : 1, step_y = step_x * s.in_width;
    for (int64_t work = int64_t{blockIdx.x} * kAnyThreads + threadIdx.x; work < s.work;
         work += int64_t{gridDim.x} * kAnyThreads) {
        int64_t image = work;  // or plane; count_0 is 1 when contiguous
        const int64_t channel = s.count_0.split(image) * kLength;
        const int64_t ox = s.count_1.split(image), oy = s.count_2.split(image);
        const T* source = x + image * s.in_height * step_y + channel;
        int p, q_first;
        int64_t row, col_first;
        first_tap(oy * s.down - s.pad_y0, s.up, p, row);
        first_tap(ox * s.down - s.pad_x0, s.up, q_first, col_first);
        A acc[kLength] = {};
        for (; p < s.taps && row < s.in_height; p += s.up, ++row) {
            int64_t col = col_first;
            for (int q = q_first; q < s.taps && col < s.in_width; q += s.up, ++col) {
                const A weight = tap(s, f, p, q);
                const Pack<T, kLength> pack = load<kLength>(source + row * step_y + col * step_x);
#pragma unroll
                for (int k = 0; k < kLength; ++k) acc[k] += weight * widen(pack.v[k]);
            }
        }
        Pack<T, kLength> pack;
#pragma unroll
        for (int k = 0; k < kLength; ++k) pack.v[k] = narrow<T>(acc[k]);
        store<kLength>(y + work * kLength, pack);
    }
}

// --- the choice between them ----------------------------------------------------------------------------------------

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
void start_pixels(const Upfirdn2d& g, Params<Accum<T>> s, const T* x, const Accum<T>* f, T* y, void* stream) {
    const int64_t vectors = g.channels / kVector<T>;
    s.lanes_log2 = vectors % 8 == 0 ? 3 : vectors % 4 == 0 ? 2 : vectors % 2 == 0 ? 1 : 0;
    const int64_t groups = vectors >> s.lanes_log2;
    const int64_t across = ceil_div(g.out_width + s.lead_x, kPixelsX * kPixels);
    const int64_t along = ceil_div(g.out_height + s.lead_y, (kPixelThreads >> s.lanes_log2) / kPixelsX * kPixels);
    s.count_0 = Divisor(groups);
    s.count_1 = Divisor(across);
    s.count_2 = Divisor(along);
    s.work = g.batch * groups * across * along;
    const auto kernel = g.up == 2 ? pixel_kernel<T, 2, 1> : pixel_kernel<T, 1, 2>;
    FICGAN_LAUNCH(kernel, grid_of(s.work, 16384), kPixelThreads, stream, s, x, f, y);
}

template <class T>
void start_any(const Upfirdn2d& g, Params<Accum<T>> s, const T* x, const Accum<T>* f, T* y, void* stream) {
    const bool channels_last = g.layout == Layout::channels_last;
    const bool vectors = channels_last && g.channels % kVector<T> == 0 && aligned(x, y);
    const int64_t inner = channels_last ? g.channels / (vectors ? kVector<T> : 1) : 1;
    s.count_0 = Divisor(inner);
    s.count_1 = Divisor(g.out_width);
    s.count_2 = Divisor(g.out_height);
    s.work = g.batch * (channels_last ? inner : g.channels) * g.out_height * g.out_width;
    const auto kernel = vectors ? any_kernel<T, kVector<T>> : any_kernel<T, 1>;
    FICGAN_LAUNCH(kernel, grid_of(ceil_div(s.work, kAnyThreads), 1 << 20), kAnyThreads, stream, s, channels_last, x, f,
                  y);
}

// The coordinates of the fast kernel are ints.
bool fits_ints(const Upfirdn2d& g) {
    constexpr int64_t kMost = 1 << 24;
    return g.in_height < kMost && g.in_width < kMost && g.out_height < kMost && g.out_width < kMost &&
           g.pad_x0 > -kMost && g.pad_x0 < kMost && g.pad_y0 > -kMost && g.pad_y0 < kMost;
}

}  // namespace

int upfirdn2d(Type type, const Upfirdn2d& g, const void* x, const void* f, void* y, void* stream) {
    if (g.up < 1 || g.down < 1 || g.taps < 1) return static_cast<int>(cudaErrorInvalidValue);
    if (g.batch <= 0 || g.channels <= 0 || g.out_height <= 0 || g.out_width <= 0) return static_cast<int>(cudaSuccess);
    const bool specialised = g.taps == kTaps && g.up * g.down == 2 && fits_ints(g);
    return with_type(type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        using A = Accum<T>;
        const T* source = static_cast<const T*>(x);
        const A* filter = static_cast<const A*>(f);
        T* target = static_cast<T*>(y);
        const int odd = g.up == 2;
        const Params<A> s{Divisor(1), Divisor(1), Divisor(1), 0, g.channels, g.in_height, g.in_width, g.out_height,
                          g.out_width, g.pad_x0, g.pad_y0, odd ? static_cast<int>(g.pad_x0 & 1) : 0,
                          odd ? static_cast<int>(g.pad_y0 & 1) : 0, g.up, g.down, g.taps, g.flip, 0, A(g.gain)};
        if (specialised && g.layout == Layout::channels_last && g.channels % kVector<T> == 0 &&
                 aligned(source, target))
            start_pixels<T>(g, s, source, filter, target, stream);
        else
            start_any<T>(g, s, source, filter, target, stream);
    });
}

}  // namespace ficgan
