// Small tensors from GPU to GPU: a count in the lender's memory says what is there, a kernel of the receiver waits for it and copies.
#include "common.cuh"

#define K extern "C" __global__ void

// Nanoseconds after which the lender is taken for lost: the kernel fails, where it would wait for ever.
constexpr unsigned long long PATIENCE = 120ull * 1000 * 1000 * 1000;

__device__ __forceinline__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

K signal(unsigned long long* lent, unsigned long long number) {
    follow();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(lent), "l"(number) : "memory");
}

// `counter`, where there is one, is host memory: copies made so far.
K fetch_lent(
    const unsigned long long* lent, unsigned long long number, const char* from, char* to, unsigned long long* counter,
    unsigned long long made, int bytes) {
    follow();
    if (threadIdx.x == 0) {
        unsigned long long there, since = now();
        do {
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(there) : "l"(lent) : "memory");
            if (there < number && now() - since > PATIENCE) __trap();
        } while (there < number);
    }
    __syncthreads();
#pragma unroll 4
    for (int at = threadIdx.x * 16; at + 16 <= bytes; at += blockDim.x * 16) {
        uint4 x;
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from + at));
        *(uint4*)(to + at) = x;
    }
    int rest = bytes / 16 * 16 + threadIdx.x * 4;
    if (rest < bytes) *(unsigned*)(to + rest) = *(const volatile unsigned*)(from + rest);
    __syncthreads();
    if (threadIdx.x == 0 && counter) {
        __threadfence_system();
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(counter), "l"(made) : "memory");
    }
}
