// The launchers for ctypes, the emulator's switches, and a count of what the undefined-behaviour sanitizer reports
// (an index beyond an array in shared memory, a misaligned vector, an overflow).
#include "cuda_on_cpu.h"
#include "kernels.h"
#include "numeric.cuh"

using namespace ficgan;

static int reports = 0;

extern "C" {

void __ubsan_on_report() { ++reports; }

int emulator_reports() {
    const int count = reports;
    reports = 0;
    return count;
}

void emulator_set(int order, unsigned most_grid) {
    cuda_on_cpu::order = order;
    cuda_on_cpu::most_grid = most_grid;
}

// A barrier that half the block never reaches, and a write beyond a shared array: both must be noticed.
int emulator_hangs() {
    cuda_on_cpu::launch(dim3(1), dim3(64), [] {
        if (threadIdx.x < 32) __syncthreads();
    });
    return cudaGetLastError();
}

void emulator_overruns(int index) {
    cuda_on_cpu::launch(dim3(1), dim3(1), [index] {
        __shared__ float array[8];
        volatile float read = array[index];
        (void)read;
    });
}

// A neighbour's value without a __syncthreads between: right in one order of the threads, wrong in the other.
int emulator_race() {
    static int result;
    result = 0;
    cuda_on_cpu::launch(dim3(1), dim3(32), [] {
        __shared__ int array[33];
        array[threadIdx.x] = 1;
        result += array[(threadIdx.x + 31) % 32];
        array[threadIdx.x] = threadIdx.x == 31 ? 1 : 0;
    });
    return result;
}

void call_divide(int64_t divisor, const int64_t* n, int64_t* quotient, int64_t count) {
    const Divisor d(divisor);
    for (int64_t k = 0; k < count; ++k) quotient[k] = d.quotient(n[k]);
}

int call_bias_act(int t, const BiasAct* s, const void* x, const void* b, void* y) {
    return bias_act(Type(t), *s, x, b, y, nullptr);
}
int call_bias_act_grad(int t, const BiasAct* s, const void* dy, const void* saved, const void* b, void* dx) {
    return bias_act_grad(Type(t), *s, dy, saved, b, dx, nullptr);
}
int call_bias_act_grad2(int t, const BiasAct* s, const void* ddx, const void* dy, const void* x, const void* b,
                        void* dx) {
    return bias_act_grad2(Type(t), *s, ddx, dy, x, b, dx, nullptr);
}
int call_upfirdn2d(int t, const Upfirdn2d* s, const void* x, const void* f, void* y) {
    return upfirdn2d(Type(t), *s, x, f, y, nullptr);
}
int call_scale_bias_lrelu(int t, const Style* s, const void* x, const void* scale, const void* b, void* y) {
    return scale_bias_lrelu(Type(t), *s, x, scale, b, y, nullptr);
}
int call_scale_bias_lrelu_grad(int t, const Style* s, const void* dy, const void* x, const void* y, const void* scale,
                               void* dx, void* dscale, void* dbias) {
    return scale_bias_lrelu_grad(Type(t), *s, dy, x, y, scale, dx, dscale, dbias, nullptr);
}
int call_adain(int t, const Style* s, const void* x, const void* b, const void* scale, const void* shift, void* y,
               void* mean, void* rstd) {
    return adain(Type(t), *s, x, b, scale, shift, y, mean, rstd, nullptr);
}
int call_adain_grad(int t, const Style* s, const void* dy, const void* x, const void* b, const void* scale,
                    const void* mean, const void* rstd, void* dx, void* dscale, void* dshift, void* dbias) {
    return adain_grad(Type(t), *s, dy, x, b, scale, mean, rstd, dx, dscale, dshift, dbias, nullptr);
}

}  // extern "C"
