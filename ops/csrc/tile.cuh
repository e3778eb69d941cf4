// The tile of upfirdn2d in shared memory: its size, and where in it a sample lies.
#pragma once
#include "numeric.cuh"

namespace ficgan {

constexpr int kTaps = 4;  // the fast kernels' filter is kTaps × kTaps

// Inputs along one axis that `outputs` neighbouring outputs see, the first of them in phase.
__host__ __device__ constexpr int window(int outputs, int up, int down) {
    return ((outputs - 1) * down + kTaps - 1) / up + 1;
}

// A block computes a tile of one plane from shared memory; 16×8 threads, each 4 outputs wide and 4 (down 2: 2) tall.
// Four by four outputs share 7×7 inputs, some 3 reads of shared memory an output in place of 16, and 64×32 outputs
// share 67×35 inputs, 15 % more than they are.
//
// Threads that are neighbours in x read inputs `kStep` apart. Column c therefore lies in bank group c % kStep, at
// c / kStep: neighbours then read neighbouring words whatever the tile's offset. The groups' length is an odd multiple
// of 32 / kStep, which sends 32 neighbouring columns to 32 banks when the tile is filled, and the rows' padding sends
// the two half-warps, which work on different rows, to different banks.
template <class T, int kUp, int kDown>
struct Tile {
    static constexpr int kThreadsX = 16, kThreadsY = 8, kThreads = kThreadsX * kThreadsY;
    static constexpr int kPerX = 4, kPerY = kDown == 2 ? 2 : 4;
    static constexpr int kOutWidth = kThreadsX * kPerX, kOutHeight = kThreadsY * kPerY;
    static constexpr int kInWidth = window(kOutWidth, kUp, kDown), kInHeight = window(kOutHeight, kUp, kDown);
    static constexpr int kStep = kPerX * kDown / kUp, kStepY = kPerY * kDown / kUp;
    // With vector loads a row starts up to a vector less one before the first column needed, and ends as far behind.
    static constexpr int kColumns = kInWidth + 2 * (kVector<T> - 1);
    static constexpr int odd_multiple(int least, int unit) {
        int n = 1;
        while (n * unit < least) n += 2;
        return n * unit;
    }
    static constexpr int kGroup = odd_multiple((kColumns + kStep - 1) / kStep, 32 / kStep);
    static constexpr int kPitch = kStep * kGroup + 16 / kStepY;
    static constexpr int kInSize = kInHeight * kPitch;
    // The same for outputs on their way to coalesced scalar stores.
    static constexpr int kOutGroup = odd_multiple(kThreadsX, 32 / kPerX);
    static constexpr int kOutPitch = kPerX * kOutGroup;
    static constexpr int kOutSize = kOutHeight * kOutPitch;
    static constexpr int kSize = kInSize > kOutSize ? kInSize : kOutSize;

    __device__ static unsigned column(unsigned c) { return c % kStep * kGroup + c / kStep; }
    // column(c + e) − column(c), where a pack of kLength starts at c, e is within it, and one of kLength and kStep
    // divides the other.
    template <int kLength>
    __device__ static constexpr int further(int e) {
        return kLength % kStep == 0 ? e % kStep * kGroup + e / kStep : e * kGroup;
    }
    __device__ static unsigned out_column(unsigned c) { return c % kPerX * kOutGroup + c / kPerX; }
};

}  // namespace ficgan
