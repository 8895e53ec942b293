// Small tensors from GPU to GPU: a count in the lender's memory says what is there, a kernel of the receiver waits for it and copies.
#include "common.cuh"

#define K extern "C" __global__ void

// What waits for another GPU lets nothing start behind it: blocks that are there and wait would keep others of this GPU from running,
// whose work the other GPU may wait for. Where nobody else's work is waited for, what comes next may bring its weights meanwhile.
__device__ __forceinline__ void follow_alone() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Nanoseconds after which the lender is taken for lost: the kernel fails, where it would wait for ever.
constexpr unsigned long long PATIENCE = 120ull * 1000 * 1000 * 1000;

__device__ __forceinline__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

K signal(unsigned long long* lent, unsigned long long number) {
    follow_early();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(lent), "l"(number) : "memory");
}

// `counter`, where there is one, is host memory: copies made so far.
K fetch_lent(
    const unsigned long long* lent, unsigned long long number, const char* from, char* to, unsigned long long* counter,
    unsigned long long made, int bytes) {
    follow_alone();
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

// Parts of a matrix, one of each GPU, put together on all of them. What a GPU writes to another's memory are eight bytes at a time, each
// half beside the number of the exchange: whoever finds that has what belongs to it, and nobody waits for a fence. A GPU that sends
// number n + 1 has had number n from all others, and they have read number n - 1 by then: two places in turn suffice.
constexpr int MEMBERS = 8;
struct Gathering {
    const uint2* own;
    uint2* out;
    uint4* to[MEMBERS];          // where the others wait for this GPU's part
    const uint4* from[MEMBERS];  // where their parts come to
    const volatile unsigned* abandoned;  // host memory: not 0 once somebody sends nothing any more
    int widths[MEMBERS], at[MEMBERS];  // of the parts' rows, and where they begin in a row of all, in eight bytes
    int rows, pitch, member, members;
    unsigned number, unused;
};

__device__ __forceinline__ void gather_parts(const Gathering& g) {
    int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    auto place = [&](int member, int i) {
        int width = g.widths[member], row = i / width;
        return g.out + (size_t)row * g.pitch + g.at[member] + (i - row * width);
    };
    for (int i = first; i < g.rows * g.widths[g.member]; i += step) {
        uint2 x = g.own[i];
        for (int other = 0; other < g.members; other++)
            if (other != g.member)
                asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(g.to[other] + i), "r"(x.x), "r"(g.number), "r"(x.y)
                             : "memory");
        *place(g.member, i) = x;
    }
    for (int other = 0; other < g.members; other++) {
        if (other == g.member) continue;
        for (int i = first; i < g.rows * g.widths[other]; i += step) {
            uint4 x;
            unsigned long long since = 0;
            for (unsigned tries = 0;; tries++) {
                asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(g.from[other] + i) : "memory");
                if (x.y == g.number && x.w == g.number) break;
                if (tries % 1024 == 1023) {
                    if (since == 0) since = now();
                    if (*g.abandoned & 255) return;
                    if (now() - since > PATIENCE) __trap();
                }
            }
            *place(other, i) = make_uint2(x.x, x.z);
        }
    }
}

K all_gather(const __grid_constant__ Gathering g) {
    follow_alone();
    gather_parts(g);
}
K all_gather_early(const __grid_constant__ Gathering g) {
    follow_early();
    gather_parts(g);
}
