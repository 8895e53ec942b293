// Keys and values in 8 bits: codes, and a scale (bf16) for each token of a head. Attends to nothing.
// A row's codes and scale depend on that row alone, and have the bits that the CPU gives it: keys are turned by a Hadamard matrix before,
// as queries are when they are asked; values are kept as they are. One warp a row.
#include "common.cuh"

constexpr int WARPS = 8, LONGEST = 256;  // elements of a head
constexpr float MOST = 127;              // codes lie between this and its negative

struct Strides {
    long long head, row;
};
// Codes of keys and of values, (token, head, dim), and their scales, (token, head).
struct Codes {
    signed char* codes[2];
    bf16* scales[2];
};

// Elements of a head that are turned together: the largest power of two that divides it.
__device__ __forceinline__ int side_of(int dim) { return dim & -dim; }
// A warp's row, block by block, times the matrix of +1 and -1.
__device__ __forceinline__ void hadamard(float* row, int dim) {
    int side = side_of(dim);
    for (int step = 1; step < side; step *= 2) {
        __syncwarp();
        for (int pair = threadIdx.x % 32; pair < dim / 2; pair += 32) {
            int at = 2 * pair - (pair & (step - 1));
            float low = row[at], high = row[at + step];
            row[at] = low + high, row[at + step] = low - high;
        }
    }
    __syncwarp();
}
// The same, so that the product with what was turned is the product before.
__device__ __forceinline__ void turn_back(float* row, int dim) {
    hadamard(row, dim);
    float factor = 1.f / side_of(dim);
    for (int i = threadIdx.x % 32; i < dim; i += 32) row[i] *= factor;
}
// Codes of a warp's row, and its scale: the least bf16 by which no code is beyond 127; no number where the row has one that is not finite.
__device__ __forceinline__ void encode(const float* row, int dim, signed char* codes, bf16* scale) {
    float largest = 0;
    bool finite = true;
    for (int i = threadIdx.x % 32; i < dim; i += 32) largest = fmaxf(largest, fabsf(row[i])), finite = finite && isfinite(row[i]);
    largest = warp_max(largest);
    finite = __all_sync(~0u, finite);
    unsigned bits = finite ? (__float_as_uint(__fdiv_rn(largest, MOST)) + 0xffffu) >> 16 : 0x7fc0u;
    float wide = __uint_as_float(bits << 16);
    for (int i = threadIdx.x % 32; i < dim; i += 32) {
        float code = wide > 0 ? rintf(__fdiv_rn(row[i], wide)) : 0.f;
        codes[i] = (signed char)fminf(fmaxf(code, -MOST), MOST);
    }
    if (threadIdx.x % 32 == 0) *(unsigned short*)scale = (unsigned short)bits;
}
// A warp's own row in shared memory.
__device__ __forceinline__ float* own_row() {
    __shared__ float rows[WARPS][LONGEST];
    return rows[threadIdx.x / 32];
}
template <class T> __device__ __forceinline__ void take(float* row, const T* from, int dim) {
    for (int i = threadIdx.x % 32; i < dim; i += 32) row[i] = widen(from[i]);
    __syncwarp();
}
// A row, turned if it is a key's, becomes codes and a scale.
template <class T> __device__ __forceinline__ void keep(const T* from, int dim, bool is_key, signed char* codes, bf16* scale) {
    float* row = own_row();
    take(row, from, dim);
    if (is_key) hadamard(row, dim);
    encode(row, dim, codes, scale);
}

// Rows of (heads, tokens, dim) to caches: to each `count` tokens from token `first` on. Blocks in y: caches.
struct KeptRun {
    Codes to;
    int first, count;
};
constexpr int RUNS = 32;
struct Keeping {
    const void *k, *v;
    Strides k_at, v_at;
    int heads, dim;
    KeptRun runs[RUNS];
};
template <class T> __device__ __forceinline__ void keep_rows(const Keeping& keeping) {
    follow();
    const KeptRun& run = keeping.runs[blockIdx.y];
    long long task = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    int heads = keeping.heads, head = task % heads, which = task / heads % 2;
    long long token = task / (2 * heads);
    if (token >= run.count) return;
    Strides at = which ? keeping.v_at : keeping.k_at;
    const T* from = (const T*)(which ? keeping.v : keeping.k) + head * at.head + (run.first + token) * at.row;
    size_t to = token * heads + head;
    signed char* codes = which ? run.to.codes[1] : run.to.codes[0];
    keep(from, keeping.dim, which == 0, codes + to * keeping.dim, (which ? run.to.scales[1] : run.to.scales[0]) + to);
}

// What codes stand for, to (token, head, dim): of each run as many rows as it has tokens, times heads. Blocks in y: keys of a run, its
// values, those of the next.
struct WidenedRun {
    Codes from;
    void* to[2];
    long long rows;
};
struct Widening {
    WidenedRun runs[RUNS];
    int dim, unused;
};
template <class T> __device__ __forceinline__ void widen_row(const signed char* codes, float scale, int dim, bool is_key, T* to) {
    float* row = own_row();
    int lane = threadIdx.x % 32;
    for (int i = lane; i < dim; i += 32) row[i] = (float)codes[i] * scale;
    __syncwarp();
    if (is_key) turn_back(row, dim);
    for (int i = lane; i < dim; i += 32) to[i] = narrow<T>(row[i]);
}
// The same additions where a lane holds N elements of a row, N a power of two. A product is rounded before it is added to.
template <int N, class T> __device__ __forceinline__ void widen_held(const signed char* codes, float scale, bool is_key, T* to) {
    int lane = threadIdx.x % 32;
    Pack<signed char, N> from = ((const Pack<signed char, N>*)codes)[lane];
    Pack<T, N> wide;
    float row[N];
#pragma unroll
    for (int i = 0; i < N; i++) row[i] = __fmul_rn((float)from.x[i], scale);
    if (is_key) {
#pragma unroll
        for (int step = 1; step < N; step *= 2)
#pragma unroll
            for (int pair = 0; pair < N / 2; pair++) {
                int at = 2 * pair - (pair & (step - 1));
                float low = row[at], high = row[at + step];
                row[at] = low + high, row[at + step] = low - high;
            }
#pragma unroll
        for (int step = 1; step < 32; step *= 2)
#pragma unroll
            for (int i = 0; i < N; i++) {
                float other = __shfl_xor_sync(~0u, row[i], step);
                row[i] = other + (lane & step ? -row[i] : row[i]);
            }
#pragma unroll
        for (int i = 0; i < N; i++) row[i] *= 1.f / (32 * N);
    }
#pragma unroll
    for (int i = 0; i < N; i++) wide.x[i] = narrow<T>(row[i]);
    ((Pack<T, N>*)to)[lane] = wide;
}
template <class T> __device__ __forceinline__ void widen_rows(const Widening& w) {
    follow();
    const WidenedRun& run = w.runs[blockIdx.y / 2];
    int which = blockIdx.y % 2, step = gridDim.x * WARPS;
    for (long long at = (long long)blockIdx.x * WARPS + threadIdx.x / 32; at < run.rows; at += step) {
        const signed char* codes = run.from.codes[which] + at * w.dim;
        float scale = widen(run.from.scales[which][at]);
        T* to = (T*)run.to[which] + at * w.dim;
        if (w.dim == 128) widen_held<4>(codes, scale, which == 0, to);
        else if (w.dim == 64) widen_held<2>(codes, scale, which == 0, to);
        else widen_row(codes, scale, w.dim, which == 0, to);
    }
}

#define K extern "C" __global__ __launch_bounds__(WARPS * 32) void
K keep_rows_bf16(const __grid_constant__ Keeping keeping) { keep_rows<bf16>(keeping); }
K keep_rows_f32(const __grid_constant__ Keeping keeping) { keep_rows<float>(keeping); }
K widen_rows_bf16(const __grid_constant__ Widening widening) { widen_rows<bf16>(widening); }
K widen_rows_f32(const __grid_constant__ Widening widening) { widen_rows<float>(widening); }

__device__ __forceinline__ void turn_query(const bf16* from, float* to, int dim) {
    float* row = own_row();
    take(row, from, dim);
    turn_back(row, dim);
    for (int i = threadIdx.x % 32; i < dim; i += 32) to[i] = row[i];
}
// Queries (heads, rows, dim) as they are asked of turned keys, to (row, head, dim).
K turn_queries(const bf16* q, Strides at, float* out, int heads, int rows, int dim) {
    follow();
    long long task = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (task >= (long long)rows * heads) return;
    turn_query(q + task % heads * at.head + task / heads * at.row, out + task * dim, dim);
}

// A step's rows to where each belongs: keys and values behind those of its sequence, queries, turned, to where every layer of the step
// finds them. Blocks in x: rows. `to` has the place of its key in the first layer.
struct PlacedCodes {
    char* key;
    long long scale, value, layer;  // bytes from a key to its scale, to its value, and from layer to layer
};
K place_rows_eight(
    const bf16* q, const bf16* k, const bf16* v, float* queries, const PlacedCodes* to, int query, int kv, int dim, int layer) {
    follow_early();
    size_t row = blockIdx.x;
    int task = blockIdx.y * WARPS + threadIdx.x / 32;
    if (task < query) {
        turn_query(q + (row * query + task) * dim, queries + (row * query + task) * dim, dim);
    } else if (task < query + 2 * kv) {
        int which = task >= query + kv, head = task - query - which * kv;
        const PlacedCodes place = to[row];
        char* to = place.key + layer * place.layer + which * place.value;
        const bf16* from = (which ? v : k) + (row * kv + head) * dim;
        keep(from, dim, which == 0, (signed char*)to + head * dim, (bf16*)(to + place.scale) + head);
    }
}

// Rows as they travel, (which, head, token): codes, then the scale; one byte behind the other. To there, or from there.
struct Travelling {
    Codes codes;
    unsigned char* bytes;
    long long tokens;
    int heads, dim;
};
template <bool LEAVES> __device__ __forceinline__ void travel(const Travelling& t) {
    follow();
    long long at = (long long)blockIdx.x * WARPS + threadIdx.x / 32, rows = t.heads * t.tokens;
    if (at >= 2 * rows) return;
    int which = at / rows, head = at % rows / t.tokens;
    size_t row = at % t.tokens * t.heads + head;
    unsigned char *one = (unsigned char*)t.codes.codes[which] + row * t.dim, *scale = (unsigned char*)(t.codes.scales[which] + row);
    unsigned char* other = t.bytes + at * (t.dim + 2);
    for (int i = threadIdx.x % 32; i < t.dim + 2; i += 32) {
        unsigned char* own = i < t.dim ? one + i : scale + i - t.dim;
        if (LEAVES) other[i] = *own;
        else *own = other[i];
    }
}
K pack_codes(const __grid_constant__ Travelling t) { travel<true>(t); }
K unpack_codes(const __grid_constant__ Travelling t) { travel<false>(t); }
