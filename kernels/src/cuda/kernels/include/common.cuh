// Conversions and reductions that every kernel file uses.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

typedef __nv_bfloat16 bf16;

// Kernels that are queued as followers may start before what was queued before them is done: they wait for it here, before they
// touch memory that it writes or reads, and let the next one start.
__device__ __forceinline__ void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The same of kernels whose blocks are few and short: the next one may start as soon as all of them have, so that it brings what it
// need not wait for while these, and those before them, are at work.
__device__ __forceinline__ void follow_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void follow_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void follow_early() { follow_start(), follow_wait(); }

// The same of kernels that write what others read without waiting: the next one starts when all of it is written.
__device__ __forceinline__ void follow_and_finish() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }
template <class T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// What came as an argument, and where things lie in it.
struct alignas(64) Carried {
    unsigned words[992];
};
template <class T> __device__ __forceinline__ const T* within(const Carried& c, int at) { return (const T*)((const char*)c.words + at); }

// N elements that travel as one access.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T x[N]; };

__device__ __forceinline__ float warp_sum(float x) {
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
    return x;
}

// Ascending by the total order of floats.
__device__ __forceinline__ unsigned ordered(float x) {
    unsigned bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_ordered(unsigned x) { return __uint_as_float(x & 0x80000000u ? x & 0x7fffffffu : ~x); }

// Which keys a row sees: `Mask` of the backend, with the sizes of its call.
struct Mask {
    int kind;  // 0 none, 1 causal, 2 from, 3 streaming
    int queries, keys;
    int first;  // row of the mask that row 0 of the call is
    long long a, b, c, d;
};

struct Sight {
    int visible, hidden_start, hidden_end;
};

__device__ __forceinline__ long long clamp(long long x, long long low, long long high) {
    return x < low ? low : x > high ? high : x;
}

__device__ __forceinline__ Sight sight(const Mask& m, int row) {
    Sight s;
    row += m.first;
    s.visible = m.keys;
    if (m.kind == 1) s.visible = (int)clamp((long long)row + 1 + m.keys - m.queries, 0, m.keys);
    if (m.kind == 2 && row < m.a) s.visible = 0;
    if (m.kind == 3) s.visible = (int)clamp(m.c + row + 1 - m.d, 0, m.keys);
    s.hidden_start = s.hidden_end = s.visible;
    if (m.kind == 3) {
        s.hidden_start = (int)clamp(m.a - m.d, 0, s.visible);
        s.hidden_end = (int)clamp(m.c + row + 1 - m.b - m.d, 0, s.visible);
        if (s.hidden_end < s.hidden_start) s.hidden_end = s.hidden_start;
    }
    return s;
}
