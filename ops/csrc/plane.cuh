// Sums over the pixels of a plane (n,c): which threads of a block share a plane, and how they add up.
#pragma once
#include "numeric.cuh"

namespace ficgan {

constexpr int kMostThreads = 512;

// Contiguous: `lanes` neighbouring threads (a warp, or the whole block) run along one plane. Channels-last: `lanes`
// neighbouring threads hold neighbouring vectors of channels, and the rows of threads above them run along the pixels.
// A block does one unit of work: blockDim / lanes planes, or `lanes` vectors of channels of an image.
struct Planes {
    int64_t units, planes, channels, pixels;
    Divisor groups;  // channels-last: units of an image
    int lanes;
};

// What one thread does of a unit: items first, first + step, ... below count; the threads that share a plane have the
// same `plane` and `count`. Threads beyond the last plane have no items, yet take part in the sums.
template <int kLength, bool kLast>
struct Part {
    static constexpr int kChannels = kLast ? kLength : 1;  // channels in a vector: planes that the thread works for
    int64_t plane, channel;                                // the first of them
    const int64_t base, item_stride;                       // elements: of item 0, and from one item to the next
    int64_t first, step, count;

    static __device__ Part of(const Planes& s, int64_t unit) {
        const int row = threadIdx.x / s.lanes, lane = threadIdx.x % s.lanes, rows = blockDim.x / s.lanes;
        if constexpr (kLast) {
            int64_t n = unit;
            const int64_t channel = (s.groups.split(n) * s.lanes + lane) * kLength;
            const bool active = channel < s.channels;
            return {n * s.channels + channel, channel, n * s.pixels * s.channels + channel, s.channels,
                    row, rows, active ? s.pixels : 0};
        } else {
            const int64_t plane = unit * rows + row;
            const bool active = plane < s.planes;
            return {plane, plane % s.channels, plane * s.pixels, kLength, lane, s.lanes,
                    active ? s.pixels / kLength : 0};
        }
    }

    __device__ bool active(const Planes& s) const { return kLast ? channel < s.channels : plane < s.planes; }
    __device__ int64_t offset(int64_t item) const { return base + item * item_stride; }
    // Index of the plane that element k of a vector belongs to, among the thread's.
    static __device__ constexpr int of_element(int k) { return kLast ? k : 0; }
};

// The most values that a block's sums pass through shared memory at a time: for each of at most 16 warps one per thread
// of a row (channels-last: 8 vectors of 8 channels, or 32 single channels).
constexpr int kScratch = kMostThreads / 32 * 64;

// Replaces v[k] by its sum over the threads that share a plane, in an order that the sizes alone decide. Every thread
// of the block must call it.
template <class A, int kCount, bool kLast>
__device__ inline void sum_over_plane(A (&v)[kCount], const Planes& s, A (&scratch)[kScratch]) {
    constexpr unsigned kAll = 0xffffffffu;
    const int across = kLast ? s.lanes : 1;  // threads of a warp that work for different planes
    for (int offset = 16; offset >= across; offset /= 2)
#pragma unroll
        for (int k = 0; k < kCount; ++k) v[k] += __shfl_xor_sync(kAll, v[k], offset);
    if (!kLast && s.lanes == 32) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, slot = lane % across;
    if (lane < across)
#pragma unroll
        for (int k = 0; k < kCount; ++k) scratch[(warp * across + slot) * kCount + k] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[k] = 0;
    for (int other = 0; other < warps; ++other)
#pragma unroll
        for (int k = 0; k < kCount; ++k) v[k] += scratch[(other * across + slot) * kCount + k];
    __syncthreads();  // the scratch is free again
}

// How many threads to a block, and which planes they get.
struct PlaneLaunch {
    Planes planes;
    unsigned grid, threads;
};

inline PlaneLaunch share_planes(const Style& g, int length) {
    const int64_t planes = g.batch * g.channels;
    if (g.layout == Layout::contiguous) {
        // A warp a plane where that gives each thread no more than 8 items; a larger block only where it has work.
        const int64_t items = g.pixels / length;
        const int threads = items <= 2048 ? 256 : kMostThreads, lanes = items <= 256 ? 32 : threads;
        const int64_t per_block = threads / lanes, units = (planes + per_block - 1) / per_block;
        return {{units, planes, g.channels, g.pixels, Divisor(1), lanes}, grid_of(units, INT32_MAX),
                static_cast<unsigned>(threads)};
    }
    // Rows of 128 bytes (or 32 single channels); narrower ones, down to a sector of 32 bytes, while there are fewer
    // blocks than twice the 132 places of the largest GPUs.
    const int64_t vectors = g.channels / length;
    int lanes = length > 1 ? 8 : 32;
    const int least = length > 1 ? 2 : 8;
    while (lanes > 1 && lanes >= 2 * vectors) lanes /= 2;
    while (lanes > least && g.batch * ((vectors + lanes - 1) / lanes) < 264) lanes /= 2;
    const int64_t groups = (vectors + lanes - 1) / lanes, units = g.batch * groups;
    const int64_t work = g.pixels * lanes;
    const int threads = work <= 512 ? 128 : work <= 4096 ? 256 : kMostThreads;
    return {{units, planes, g.channels, g.pixels, Divisor(groups), lanes}, grid_of(units, INT32_MAX),
            static_cast<unsigned>(threads)};
}

}  // namespace ficgan
