// Where a kernel is started: on the GPU under nvcc; under g++ with FICGAN_ON_CPU in the emulator of tests/ops,
// which runs the same source, thread by thread, on machines without a GPU.
#pragma once

#ifdef FICGAN_ON_CPU
#include "cuda_on_cpu.h"
#define FICGAN_LAUNCH(kernel, grid, block, stream, ...) \
    (static_cast<void>(stream), cuda_on_cpu::launch(dim3(grid), dim3(block), [&] { kernel(__VA_ARGS__); }))
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define FICGAN_LAUNCH(kernel, grid, block, stream, ...) \
    kernel<<<dim3(grid), dim3(block), 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#endif

#include <cstdint>
#include <type_traits>

#include "kernels.h"

namespace ficgan {

// `units` of work, one a block, as a grid: beyond `limit` a block does several, in a loop. The limits below leave some
// dozen blocks for each place on the largest GPUs, so that the last wave is short, and let a block spread over several
// units what it prepares once.
inline unsigned grid_of(int64_t units, int64_t limit) { return static_cast<unsigned>(units < limit ? units : limit); }

// Calls `body` with a null pointer of the element type.
template <class Body>
int with_type(Type type, Body body) {
    switch (type) {
        case Type::f16: body(static_cast<__half*>(nullptr)); break;
        case Type::bf16: body(static_cast<__nv_bfloat16*>(nullptr)); break;
        case Type::f32: body(static_cast<float*>(nullptr)); break;
        case Type::f64: body(static_cast<double*>(nullptr)); break;
        default: return static_cast<int>(cudaErrorInvalidValue);
    }
    return static_cast<int>(cudaGetLastError());
}

// All of these start at a multiple of 16 bytes (no pointer counts as one that does).
template <class... Pointers>
bool aligned(const Pointers*... pointers) {
    return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace ficgan
