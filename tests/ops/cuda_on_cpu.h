// Enough of CUDA for g++ to compile the kernels of ops/csrc and run them on the CPU, one thread of a block at a time.
//
// Every thread of a block is a fibre with its own stack. It runs until it ends or meets __syncthreads or a shuffle;
// those wait as on the GPU, for all threads of the block or of the warp. What the GPU would hang on or leave undefined
// (a thread that has ended while others wait for it, a partial shuffle mask) is an error of the launch. Waiting threads
// go on in shuffled order, because a missing __syncthreads goes unnoticed in most single orders.
#pragma once
#include <math.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// One block runs at a time, so the shared memory of a kernel is one static array.
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchFailure = 719
};

// --- half types -----------------------------------------------------------------------------------------------------

struct __half {
    _Float16 value;
};
struct __nv_bfloat16 {
    uint16_t bits;
};

inline float __half2float(__half h) { return static_cast<float>(h.value); }
inline __half __float2half_rn(float v) { return {static_cast<_Float16>(v)}; }
inline float __bfloat162float(__nv_bfloat16 h) {
    const uint32_t bits = static_cast<uint32_t>(h.bits) << 16;
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    if (v != v) return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
}

// --- blocks of fibres -----------------------------------------------------------------------------------------------

namespace cuda_on_cpu {

enum class State { ready, at_block, at_warp, done };

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state;
    uint64_t sent;  // the bits that the thread offers in a shuffle
};

constexpr std::size_t kStack = 64 * 1024;

constexpr unsigned kMostGrid = 3;  // every grid is cut to so many blocks, so that blocks must loop
inline cudaError_t error = cudaSuccess;
inline std::vector<Fibre> fibres;
inline ucontext_t scheduler;
inline const std::function<void()>* body;
inline unsigned current;
inline dim3 thread_index, block_index, block_size, grid_size;

inline void run_fibre() {
    (*body)();
    fibres[current].state = State::done;
    swapcontext(&fibres[current].context, &scheduler);
}

inline void wait(State state) {
    Fibre& self = fibres[current];
    self.state = state;
    swapcontext(&self.context, &scheduler);
}

// Whether all of [first, last) wait in `state`; then they may go on.
inline bool release(unsigned first, unsigned last, State state) {
    for (unsigned t = first; t < last; ++t)
        if (fibres[t].state != state) return false;
    for (unsigned t = first; t < last; ++t) fibres[t].state = State::ready;
    return true;
}

inline bool run_block(unsigned threads) {
    if (fibres.size() < threads) fibres.resize(threads);
    for (unsigned t = 0; t < threads; ++t) {
        Fibre& fibre = fibres[t];
        if (!fibre.stack) fibre.stack.reset(new char[kStack]);
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.get();
        fibre.context.uc_stack.ss_size = kStack;
        fibre.context.uc_link = nullptr;
        fibre.state = State::ready;
        makecontext(&fibre.context, run_fibre, 0);
    }
    uint32_t random = 12345;
    for (;;) {
        bool ran = false;
        for (unsigned k = 0; k < threads; ++k) {
            // An odd factor permutes the threads where their number is a power of two, as it is here throughout.
            if (k == 0) random = random * 1664525u + 1013904223u;
            const unsigned t = (k * (random | 1u) + (random >> 16)) & (threads - 1);
            if (fibres[t].state != State::ready) continue;
            ran = true;
            current = t;
            thread_index = dim3(t);
            swapcontext(&scheduler, &fibres[t].context);
        }
        if (ran) continue;
        bool released = release(0, threads, State::at_block);
        for (unsigned first = 0; first < threads; first += 32)
            released |= release(first, first + 32 < threads ? first + 32 : threads, State::at_warp);
        if (released) continue;
        for (unsigned t = 0; t < threads; ++t)
            if (fibres[t].state != State::done) return false;
        return true;
    }
}

inline void launch(dim3 grid, dim3 block, const std::function<void()>& kernel) {
    const bool one_dimension = grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1;
    if (!one_dimension || grid.x == 0 || grid.x > 2147483647u || block.x == 0 || block.x > 1024 ||
        (block.x & (block.x - 1))) {
        error = cudaErrorInvalidConfiguration;
        return;
    }
    if (grid.x > kMostGrid) grid.x = kMostGrid;
    body = &kernel;
    grid_size = grid;
    block_size = block;
    for (unsigned k = 0; k < grid.x; ++k) {
        block_index = dim3(grid.x - 1 - k);
        if (!run_block(block.x)) {
            error = cudaErrorLaunchFailure;
            return;
        }
    }
}

template <class T>
T shuffle_xor(unsigned mask, T value, int offset) {
    static_assert(sizeof(T) <= 8);
    if (mask != 0xffffffffu || block_size.x % 32) {
        error = cudaErrorLaunchFailure;
        return value;
    }
    const unsigned self = current;
    std::memcpy(&fibres[self].sent, &value, sizeof(T));
    wait(State::at_warp);  // all have sent
    std::memcpy(&value, &fibres[self ^ static_cast<unsigned>(offset)].sent, sizeof(T));
    wait(State::at_warp);  // all have received
    return value;
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::thread_index)
#define blockIdx (cuda_on_cpu::block_index)
#define blockDim (cuda_on_cpu::block_size)
#define gridDim (cuda_on_cpu::grid_size)

inline void __syncthreads() { cuda_on_cpu::wait(cuda_on_cpu::State::at_block); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int offset) {
    return cuda_on_cpu::shuffle_xor(mask, value, offset);
}

inline cudaError_t cudaGetLastError() {
    const cudaError_t last = cuda_on_cpu::error;
    cuda_on_cpu::error = cudaSuccess;
    return last;
}
