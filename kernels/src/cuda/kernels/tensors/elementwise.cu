// What a decoder does between its products: embedding, norm, rotation, activation, conversion.
#include "normed.cuh"

template <class T> __device__ void embed(const T* table, const unsigned* ids, T* out, int e) {
    const T* from = table + (size_t)ids[blockIdx.x] * e;
    T* to = out + (size_t)blockIdx.x * e;
    for (int i = threadIdx.x; i < e; i += blockDim.x) to[i] = from[i];
}

// One block a row. `residual`, where there is one, is added to `x` in place first. The first packs of a thread stay where they are, and
// their weights wait for nobody, but for those that are so short that a kernel may just be writing them.
constexpr int HELD = 2, SHORT = 4096;
template <class T, int V>
__device__ void rms_norm(T* x, const T* residual, const T* weight, T* out, int e, float eps) {
    T* row = x + (size_t)blockIdx.x * e;
    T* to = out + (size_t)blockIdx.x * e;
    int step = blockDim.x * V, first = threadIdx.x * V;
    Pack<T, V> held[HELD], weights[HELD];
    auto load_weights = [&] {
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (first + h * step < e) weights[h] = *(const Pack<T, V>*)(weight + first + h * step);
    };
    bool at_once = e * sizeof(T) > SHORT;
    if (at_once) load_weights();
    follow_early();
    if (!at_once) load_weights();
    float sum = 0;
    auto add = [&](int i) {
        Pack<T, V> p = *(const Pack<T, V>*)(row + i);
        if (residual) {
            Pack<T, V> r = *(const Pack<T, V>*)(residual + (size_t)blockIdx.x * e + i);
            for (int j = 0; j < V; j++) p.x[j] = narrow<T>(widen(p.x[j]) + widen(r.x[j]));
            *(Pack<T, V>*)(row + i) = p;
        }
        sum = squares(sum, p);
        return p;
    };
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (first + h * step < e) held[h] = add(first + h * step);
    for (int i = first + HELD * step; i < e; i += step) add(i);
    float factor = norm_factor(sum, e, eps);
    auto put = [&](int i, const Pack<T, V>& p, const Pack<T, V>& w) { *(Pack<T, V>*)(to + i) = normed(p, factor, w); };
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (first + h * step < e) put(first + h * step, held[h], weights[h]);
    for (int i = first + HELD * step; i < e; i += step) put(i, *(const Pack<T, V>*)(row + i), *(const Pack<T, V>*)(weight + i));
}

// Outputs lie `pitch` elements from row to row.
template <class T, int V> __device__ void gated_silu(const T* gate_up, T* out, long long count, int f, int pitch) {
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * V; at < count;
         at += (long long)gridDim.x * blockDim.x * V) {
        long long row = at / f, column = at % f;
        const T* from = gate_up + row * 2 * f + column;
        Pack<T, V> g = *(const Pack<T, V>*)from, u = *(const Pack<T, V>*)(from + f);
        for (int j = 0; j < V; j++) g.x[j] = narrow<T>(silu(widen(g.x[j])) * widen(u.x[j]));
        *(Pack<T, V>*)(out + row * pitch + column) = g;
    }
}

// Where heads and rows of a `(heads, rows, dim)` tensor lie, in elements.
struct Strides {
    long long head, row;
};

struct Rotation {
    const void* qkv;
    void *q, *k, *v;
    const unsigned* positions;
    const float* inv_freq;
    Strides q_at, kv_at;
    int query, kv, dim;
    float factor;
};

// One block a token.
template <class T, int V> __device__ void split_rotate(const Rotation& r) {
    extern __shared__ float angles[];
    int half = r.dim / 2, heads = r.query + 2 * r.kv, token = blockIdx.x;
    float *cosines = angles, *sines = angles + half;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        sincosf(__fmul_rn((float)r.positions[token], r.inv_freq[i]), sines + i, cosines + i);
        float factor = r.inv_freq[i] == 0.f ? 1.f : r.factor;
        sines[i] = __fmul_rn(sines[i], factor);
        cosines[i] = __fmul_rn(cosines[i], factor);
    }
    __syncthreads();
    const T* from = (const T*)r.qkv + (size_t)token * heads * r.dim;
    int steps = half / V;
    for (int at = threadIdx.x; at < heads * steps; at += blockDim.x) {
        int head = at / steps, i = at % steps * V;
        Pack<T, V> a = *(const Pack<T, V>*)(from + head * r.dim + i), b = *(const Pack<T, V>*)(from + head * r.dim + half + i);
        T* to;
        if (head < r.query) {
            to = (T*)r.q + head * r.q_at.head + token * r.q_at.row;
        } else {
            int h = head - r.query;
            to = h < r.kv ? (T*)r.k + h * r.kv_at.head : (T*)r.v + (h - r.kv) * r.kv_at.head;
            to += token * r.kv_at.row;
        }
        if (head < r.query + r.kv) {
            for (int j = 0; j < V; j++) {
                float x = widen(a.x[j]), y = widen(b.x[j]), c = cosines[i + j], s = sines[i + j];
                a.x[j] = narrow<T>(x * c - y * s);
                b.x[j] = narrow<T>(y * c + x * s);
            }
        }
        *(Pack<T, V>*)(to + i) = a;
        *(Pack<T, V>*)(to + half + i) = b;
    }
}

// (heads, t, dim) in f32 to (t, heads dim).
template <class T> __device__ void join_heads(const float* x, T* out, int heads, int t, int dim) {
    long long count = (long long)heads * t * dim;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x) {
        long long token = at / ((long long)heads * dim), rest = at % ((long long)heads * dim);
        out[at] = narrow<T>(x[(rest / dim * t + token) * dim + rest % dim]);
    }
}

// Rows with strides of their own, to and from: what appending to a cache and reading it are.
template <class T, int V>
__device__ void copy_heads(const T* from, T* to, Strides from_at, Strides to_at, int heads, int t, int dim) {
    long long count = (long long)heads * t * dim;
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * V; at < count;
         at += (long long)gridDim.x * blockDim.x * V) {
        long long head = at / dim % heads, token = at / ((long long)heads * dim), i = at % dim;
        *(Pack<T, V>*)(to + head * to_at.head + token * to_at.row + i) =
            *(const Pack<T, V>*)(from + head * from_at.head + token * from_at.row + i);
    }
}

template <class A, class B> __device__ void cast(const A* x, B* out, long long count) {
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x)
        out[at] = narrow<B>(widen(x[at]));
}

template <class T> __device__ void silu_each(const T* x, T* out, long long count) {
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x)
        out[at] = narrow<T>(silu(widen(x[at])));
}

#define K extern "C" __global__ void
#define EACH(T, S, V)                                                                                                       \
    K embed_##S(const T* table, const unsigned* ids, T* out, int e) { follow(); embed(table, ids, out, e); }                \
    K rms_norm_##S(T* x, const T* r, const T* w, T* out, int e, float eps) { rms_norm<T, 1>(x, r, w, out, e, eps); }       \
    K rms_norm_wide_##S(T* x, const T* r, const T* w, T* out, int e, float eps) { rms_norm<T, V>(x, r, w, out, e, eps); }       \
    K gated_silu_##S(const T* x, T* out, long long n, int f, int p) { follow(); gated_silu<T, 1>(x, out, n, f, p); }        \
    K gated_silu_wide_##S(const T* x, T* out, long long n, int f, int p) { follow(); gated_silu<T, V>(x, out, n, f, p); }   \
    K split_rotate_##S(const Rotation r) { follow_early(); split_rotate<T, 1>(r); }                                               \
    K split_rotate_wide_##S(const Rotation r) { follow_early(); split_rotate<T, 4>(r); }                                          \
    K join_heads_##S(const float* x, T* out, int h, int t, int d) { join_heads(x, out, h, t, d); }                          \
    K copy_heads_##S(const T* x, T* y, Strides a, Strides b, int h, int t, int d) { follow(); copy_heads<T, 1>(x, y, a, b, h, t, d); }\
    K copy_heads_wide_##S(const T* x, T* y, Strides a, Strides b, int h, int t, int d) {                                    \
        follow();                                                                                                           \
        copy_heads<T, V>(x, y, a, b, h, t, d);                                                                              \
    }                                                                                                                       \
    K silu_##S(const T* x, T* out, long long n) { silu_each(x, out, n); }
EACH(bf16, bf16, 8)
EACH(float, f32, 4)
K cast_to_bf16(const float* x, bf16* out, long long n) { follow(); cast(x, out, n); }
K cast_to_f32(const bf16* x, float* out, long long n) { follow(); cast(x, out, n); }

// Numbers in [-1, 1) times `scale`, a function of place and seed: random weights that no host has to make.
__device__ __forceinline__ unsigned scattered(long long at, unsigned seed) {
    unsigned x = (unsigned)at * 2654435761u ^ (unsigned)(at >> 32) * 40503u ^ seed;
    x ^= x >> 16; x *= 0x85ebca6bu; x ^= x >> 13; x *= 0xc2b2ae35u; x ^= x >> 16;
    return x;
}
template <class T> __device__ void random_fill(T* out, long long count, unsigned seed, float scale) {
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x)
        out[at] = narrow<T>(((float)(scattered(at, seed) >> 8) / 8388608.f - 1.f) * scale);
}
K random_fill_bf16(bf16* out, long long n, unsigned seed, float scale) { random_fill(out, n, seed, scale); }
K random_fill_f32(float* out, long long n, unsigned seed, float scale) { random_fill(out, n, seed, scale); }

// Rows of numbers of sizes from 1/16 to 8: the second half of a row is the first again, by a factor of its own.
K cancelling_fill(bf16* out, long long count, unsigned seed, int columns, float first, float second) {
    int half = columns / 2;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x) {
        bool again = at % columns >= half;
        unsigned x = scattered(again ? at - half : at, seed);
        float size = exp2f((float)(x & 7) - 4.f) * (again ? second : first);
        out[at] = narrow<bf16>(((float)(x >> 8) / 8388608.f - 1.f) * size);
    }
}
