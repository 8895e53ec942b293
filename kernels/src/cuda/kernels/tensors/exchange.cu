// Small tensors from GPU to GPU: a count in the lender's memory says what is there, a kernel of the receiver waits for it and copies.
#include "eight.cuh"
#include "normed.cuh"

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

__device__ __forceinline__ void send(uint4* to, uint2 x, unsigned number) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(x.x), "r"(number), "r"(x.y) : "memory");
}
__device__ __forceinline__ uint4 look(const uint4* from) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from) : "memory");
    return x;
}
__device__ __forceinline__ bool is_of(const uint4& packet, unsigned number) { return packet.y == number && packet.w == number; }

// Of one who looks again and again.
struct Wait {
    unsigned tries = 0;
    unsigned long long since = 0;
    // Whether nothing comes any more; fails where the sender is lost.
    __device__ __forceinline__ bool is_over(const Gathering& g) {
        if (++tries % 1024 != 0) return false;
        if (since == 0) since = now();
        if (now() - since > PATIENCE) __trap();
        return *g.abandoned & 255;
    }
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
                send(g.to[other] + i, x, g.number);
        *place(g.member, i) = x;
    }
    for (int other = 0; other < g.members; other++) {
        if (other == g.member) continue;
        for (int i = first; i < g.rows * g.widths[other]; i += step) {
            uint4 x;
            Wait wait;
            while (x = look(g.from[other] + i), !is_of(x, g.number))
                if (wait.is_over(g)) return;
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

// Few rows of parts on their way to a product, a block of threads each, without a stop between. Parts have an even width, so that packs of
// eight elements lie within one; a thread has those that are its own in turn.
struct GatheredRows {
    Gathering parts;
    const bf16* norm;  // weights, where rows are normed
    void* out;
    float* scales;     // of 8-bit floats
    float eps;
    unsigned unused;
};

// Packs that a thread waits for at a time.
constexpr int COMING = 4;

// A row of all parts to shared memory.
__device__ __forceinline__ void gather_row(const Gathering& g, uint4* row) {
    int packs = g.pitch / 2;
    auto member_of = [&](int pack) {
        int member = 0;
        while (member + 1 < g.members && 2 * pack >= g.at[member + 1]) member++;
        return member;
    };
    // Where a pack's first half is among what its member sends.
    auto sent = [&](int member, int pack) { return blockIdx.x * g.widths[member] + 2 * pack - g.at[member]; };
    int first = g.at[g.member] / 2, end = first + g.widths[g.member] / 2;
    for (int pack = threadIdx.x; pack < end; pack += blockDim.x) {
        if (pack < first) continue;
        int i = sent(g.member, pack);
        uint4 x = *(const uint4*)(g.own + i);
        for (int other = 0; other < g.members; other++)
            if (other != g.member)
                send(g.to[other] + i, make_uint2(x.x, x.y), g.number), send(g.to[other] + i + 1, make_uint2(x.z, x.w), g.number);
        row[pack] = x;
    }
    for (int begin = threadIdx.x; begin < packs; begin += COMING * blockDim.x) {
        const uint4* from[COMING];
        unsigned missing = 0;
#pragma unroll
        for (int c = 0; c < COMING; c++) {
            int pack = begin + c * blockDim.x;
            if (pack >= packs || (pack >= first && pack < end)) continue;
            int member = member_of(pack);
            from[c] = g.from[member] + sent(member, pack);
            missing |= 1u << c;
        }
        Wait wait;
        while (missing && !wait.is_over(g)) {
            uint4 halves[COMING][2];
#pragma unroll
            for (int c = 0; c < COMING; c++)
                if (missing >> c & 1) halves[c][0] = look(from[c]), halves[c][1] = look(from[c] + 1);
#pragma unroll
            for (int c = 0; c < COMING; c++) {
                if (!(missing >> c & 1) || !is_of(halves[c][0], g.number) || !is_of(halves[c][1], g.number)) continue;
                row[begin + c * blockDim.x] = make_uint4(halves[c][0].x, halves[c][0].z, halves[c][1].x, halves[c][1].z);
                missing &= ~(1u << c);
            }
        }
    }
}

// As its product wants it, by the arithmetic of `rms_norm`, `quantize` and `quantize_norm`; those that norm have 256 threads.
template <bool EIGHT, bool EARLY> __device__ __forceinline__ void gather_rows(const GatheredRows& rows) {
    extern __shared__ uint4 row[];
    int columns = rows.parts.pitch * 4, packs = columns / 8;
    uint4* weights = row + packs;
    if (rows.norm)
        for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) weights[pack] = ((const uint4*)rows.norm)[pack];
    if (EARLY) follow_early();
    else follow_alone();
    gather_row(rows.parts, row);
    // Each thread reads what it wrote.
    auto given = [&](int i) { return *(const Sixteen*)((const bf16*)row + i); };
    if (!rows.norm) {
        if (EIGHT) quantize_row(given, (unsigned char*)rows.out, rows.scales, columns);
        return;
    }
    float sum = 0;
    for (int i = threadIdx.x * 8; i < columns; i += blockDim.x * 8) sum = squares(sum, given(i));
    float factor = norm_factor(sum, columns, rows.eps);
    auto value = [&](int i) { return normed(given(i), factor, *(const Sixteen*)((const bf16*)weights + i)); };
    if (EIGHT) return quantize_row(value, (unsigned char*)rows.out, rows.scales, columns);
    bf16* to = (bf16*)rows.out + (size_t)blockIdx.x * columns;
    for (int i = threadIdx.x * 8; i < columns; i += blockDim.x * 8) *(Sixteen*)(to + i) = value(i);
}

K all_gather_rows(const __grid_constant__ GatheredRows rows) { gather_rows<false, false>(rows); }
K all_gather_rows_eight(const __grid_constant__ GatheredRows rows) { gather_rows<true, false>(rows); }
K all_gather_early_rows(const __grid_constant__ GatheredRows rows) { gather_rows<false, true>(rows); }
K all_gather_early_rows_eight(const __grid_constant__ GatheredRows rows) { gather_rows<true, true>(rows); }
