// Tokens chosen of rows of logits, some of them changed before, and what is told of the rows besides. The reference is `RowChoice::of`. A block
// of 1,024 threads a row: its bits depend on the row alone.
#include "common.cuh"

#define K extern "C" __global__ void

constexpr int THREADS = 1024;

// Of each row of logits, which are n: the largest, ties to the lowest id, the sum of all powers of e less it, and whether one of them is no
// finite number.
struct Likeliest {
    int token, unfinished;
    float logit, unused;
    double sum;
};
template <class T> __device__ void likeliest(const T* row, Likeliest* out, int n) {
    __shared__ float most[32];
    __shared__ double sums[32];
    __shared__ int ids[32], odd[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, id = n, strange = 0;
    float max = -INFINITY;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float x = widen(row[i]);
        strange |= !isfinite(x);
        if (x > max) max = x, id = i;
    }
    auto better = [&](float other, int at) {
        if (other > max || (other == max && at < id)) max = other, id = at;
    };
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(~0u, max, step);
        int at = __shfl_xor_sync(~0u, id, step);
        better(other, at);
        strange |= __shfl_xor_sync(~0u, strange, step);
    }
    if (lane == 0) most[warp] = max, ids[warp] = id, odd[warp] = strange;
    __syncthreads();
    max = most[0], id = ids[0], strange = odd[0];
    for (int w = 1; w < 32; w++) better(most[w], ids[w]), strange |= odd[w];
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += expf(widen(row[i]) - max);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    sum = 0;
    for (int w = 0; w < 32; w++) sum += sums[w];
    *out = Likeliest{id == n ? 0 : id, strange, max, 0, sum};
}
template <class T> __device__ void likeliest_of_rows(const T* logits, Likeliest* out, int n) {
    likeliest(logits + (size_t)blockIdx.x * n, out + blockIdx.x, n);
}
K __launch_bounds__(THREADS) likeliest_bf16(const bf16* logits, Likeliest* out, int n) { likeliest_of_rows(logits, out, n); }
K __launch_bounds__(THREADS) likeliest_f32(const float* logits, Likeliest* out, int n) { likeliest_of_rows(logits, out, n); }

// What changes the logit of a token, no other change of the row having the same.
struct Change {
    int token;
    float bias, repetition, presence, frequency;
};
// Which changes a row has, and where the bits of its tokens that may come lie; -1: all may.
struct Shape {
    int row, first_change, end_change, first_word;
};
// Of each shape its row of logits, changed, and what is likeliest of that. Bits are those of the host.
template <class T>
__device__ void shape(const T* logits, const Shape* shapes, const Change* changes, const unsigned* words, float* to, Likeliest* out, int n) {
    const Shape shape = shapes[blockIdx.x];
    const T* row = logits + (size_t)shape.row * n;
    to += (size_t)blockIdx.x * n;
    auto may_come = [&](int id) { return shape.first_word < 0 || words[shape.first_word + id / 32] >> id % 32 & 1; };
    for (int id = threadIdx.x; id < n; id += THREADS) to[id] = may_come(id) ? widen(row[id]) : -INFINITY;
    __syncthreads();
    for (int i = shape.first_change + threadIdx.x; i < shape.end_change; i += THREADS) {
        Change change = changes[i];
        if (change.token >= n) continue;
        float x = __fadd_rn(to[change.token], change.bias);
        x = x > 0 ? __fdiv_rn(x, change.repetition) : __fmul_rn(x, change.repetition);
        to[change.token] = __fsub_rn(__fsub_rn(x, change.presence), change.frequency);
    }
    __syncthreads();
    likeliest(to, out + blockIdx.x, n);
}
K __launch_bounds__(THREADS)
    shape_bf16(const bf16* logits, const Shape* shapes, const Change* changes, const unsigned* words, float* to, Likeliest* out, int n) {
    shape(logits, shapes, changes, words, to, out, n);
}
K __launch_bounds__(THREADS)
    shape_f32(const float* logits, const Shape* shapes, const Change* changes, const unsigned* words, float* to, Likeliest* out, int n) {
    shape(logits, shapes, changes, words, to, out, n);
}

// What is asked of a row: a token that is drawn where `temperature` is above 0, else the one that is `known`, else (-1) the likeliest.
// Where `shape` is not -1, it is drawn of logits that were changed.
struct Ask {
    int row, known, top_k, top;
    float temperature, top_p, min_p;
    int shape;
    double part;  // of what may be drawn, in the order of falling logits, that lies before the token
};
constexpr int MOST_TOP = 20;  // most tokens that are told besides
// `token` is -1 where too many tokens are as likely as those that are told besides, or none may come.
struct Told {
    int token;
    float logit;
    int ids[MOST_TOP];
    float logits[MOST_TOP];
};

// Logits lie in bins by how far they are below the largest, so far that a weight is nothing (2^-44 of the largest); tokens of one bin, or
// of the first few, are sorted where one of them is looked for. A bin of more than the list has room for is parted into bins of its own,
// until all in it are equal. Weights are whole numbers of 2^-44, whose sums have no order.
constexpr int BINS = 2 * THREADS, LISTED = 2 * THREADS;
constexpr float FARTHEST = 31;  // above 44 ln 2
constexpr double ONE = 1ll << 44;
typedef unsigned long long u64;

struct Bins {
    // How many there are, and their weights: of the bins before each, once they are added up.
    unsigned counts[BINS + 1];
    u64 weights[BINS + 1];
    u64 list[LISTED];  // places and ids, in order
    u64 parts[32], with;
    unsigned lowest, highest;
    int listed, found;
};

// The sum of x in the threads before and with this one. All threads of the block.
__device__ __forceinline__ u64 sum_up_to(u64 x, u64* parts) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        u64 before = __shfl_up_sync(~0u, x, step);
        if (lane >= step) x += before;
    }
    __syncthreads();
    if (lane == 31) parts[warp] = x;
    __syncthreads();
    u64 part = parts[lane], own = part;
    for (int step = 1; step < 32; step *= 2) {
        u64 before = __shfl_up_sync(~0u, part, step);
        if (lane >= step) part += before;
    }
    return x + __shfl_sync(~0u, part - own, warp);
}

template <class T> struct Chooser {
    const T* row;
    int n;
    const Ask& ask;
    float largest, by;
    Bins& bins;
    // Which tokens are in the bins: all, by distance, or those between two places; and what those before them come to.
    bool parted = false;
    unsigned low = 0, high = ~0u, counts_before = 0;
    u64 weights_before = 0;
    int first = -1, last = -1;  // bins whose tokens are in the list
    u64 sums[3];                // of weights in the list: before this thread's two tokens, with the first and with both

    // As one zero.
    __device__ __forceinline__ float logit(int id) const { return widen(row[id]) + 0.f; }
    // Rises as logits fall.
    static __device__ __forceinline__ unsigned place_of(float x) { return ~ordered(x); }
    static __device__ __forceinline__ float logit_of(unsigned place) { return of_ordered(~place); }
    // -1: in none, as what cannot come.
    __device__ __forceinline__ int bin_of(float x) const {
        if (x == -INFINITY) return -1;
        if (!parted) return (int)fminf((largest - x) * by, BINS - 1.f);
        unsigned place = place_of(x);
        return place < low || place > high ? -1 : (int)((u64)(place - low) * BINS / ((u64)(high - low) + 1));
    }
    __device__ __forceinline__ u64 weight_of(float x) const {
        double weight = exp(((double)x - (double)largest) / (double)ask.temperature);
        return weight < (double)ask.min_p ? 0 : __double2ull_rn(weight * ONE);
    }
    __device__ void fill() {
        __syncthreads();
        for (int i = threadIdx.x; i <= BINS; i += THREADS) bins.counts[i] = 0, bins.weights[i] = 0;
        if (threadIdx.x == 0) bins.found = 0, bins.with = 0;
        __syncthreads();
        for (int id = threadIdx.x; id < n; id += THREADS) {
            float x = logit(id);
            int bin = bin_of(x);
            if (bin < 0) continue;
            atomicAdd(&bins.counts[bin], 1u);
            if (ask.temperature > 0) {
                u64 weight = weight_of(x);
                if (weight) atomicAdd(&bins.weights[bin], weight);
            }
        }
        __syncthreads();
        int at = 2 * threadIdx.x;
        u64 counts[2] = {bins.counts[at], bins.counts[at + 1]}, weights[2] = {bins.weights[at], bins.weights[at + 1]};
        u64 count = sum_up_to(counts[0] + counts[1], bins.parts), weight = sum_up_to(weights[0] + weights[1], bins.parts);
        bins.counts[at + 1] = count - counts[1], bins.counts[at] = count - counts[1] - counts[0];
        bins.weights[at + 1] = weight - weights[1], bins.weights[at] = weight - weights[1] - weights[0];
        if (threadIdx.x == THREADS - 1) bins.counts[BINS] = count, bins.weights[BINS] = weight;
        __syncthreads();
        first = last = -1;
    }
    // All tokens are in the bins again.
    __device__ void restore() {
        if (!parted) return;
        parted = false, counts_before = 0, weights_before = 0;
        fill();
    }
    // The tokens of a bin alone are in the bins.
    __device__ void part(int bin) {
        if (threadIdx.x == 0) bins.lowest = ~0u, bins.highest = 0;
        __syncthreads();
        for (int id = threadIdx.x; id < n; id += THREADS) {
            float x = logit(id);
            if (bin_of(x) == bin) atomicMin(&bins.lowest, place_of(x)), atomicMax(&bins.highest, place_of(x));
        }
        __syncthreads();
        counts_before += bins.counts[bin], weights_before += bins.weights[bin];
        parted = true, low = bins.lowest, high = bins.highest;
        if (low < high) fill();
    }
    // The last bin before which there is no more than that.
    template <class V> static __device__ int bin_with(const V* before, V most) {
        int low = 0, high = BINS;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (before[middle] <= most) low = middle;
            else high = middle;
        }
        return low;
    }
    // Lists the tokens of some bins, in the order of falling logits and rising ids, and adds up their weights. Whether there is room.
    __device__ bool list(int from, int to) {
        if (from == first && to == last) return true;
        int count = bins.counts[to + 1] - bins.counts[from], size = 2;
        if (count > LISTED) return false;
        while (size < count) size *= 2;
        __syncthreads();
        if (threadIdx.x == 0) bins.listed = 0;
        for (int i = threadIdx.x; i < size; i += THREADS) bins.list[i] = ~0ull;
        __syncthreads();
        for (int id = threadIdx.x; id < n; id += THREADS) {
            float x = logit(id);
            int bin = bin_of(x);
            if (bin >= from && bin <= to) bins.list[atomicAdd(&bins.listed, 1)] = (u64)place_of(x) << 32 | (unsigned)id;
        }
        __syncthreads();
        for (int run = 2; run <= size; run *= 2)
            for (int step = run / 2; step > 0; step /= 2) {
                int i = 2 * threadIdx.x - threadIdx.x % step, other = i + step;
                if (other < size) {
                    u64 a = bins.list[i], b = bins.list[other];
                    if ((a > b) == ((i & run) == 0)) bins.list[i] = b, bins.list[other] = a;
                }
                __syncthreads();
            }
        if (ask.temperature > 0) {
            u64 weights[2];
            for (int i = 0; i < 2; i++) weights[i] = 2 * threadIdx.x + i < count ? weight_of(logit_at(2 * threadIdx.x + i)) : 0;
            sums[2] = sum_up_to(weights[0] + weights[1], bins.parts);
            sums[1] = sums[2] - weights[1], sums[0] = sums[1] - weights[0];
        }
        first = from, last = to;
        return true;
    }
    __device__ __forceinline__ int id_at(int at) const { return (int)(unsigned)bins.list[at]; }
    __device__ __forceinline__ float logit_at(int at) const { return logit_of(bins.list[at] >> 32); }
    // The token at a place of those that are equal, from 0 on, by their ids.
    __device__ void find_equal(u64 wanted) {
        u64 before = 0;
        for (int start = 0; start < n; start += THREADS) {
            int id = start + threadIdx.x, is_equal = id < n && place_of(logit(id)) == low;
            u64 with = before + sum_up_to(is_equal, bins.parts);
            if (is_equal && with == wanted + 1) bins.found = id;
            if (threadIdx.x == THREADS - 1) bins.with = with;
            __syncthreads();
            before = bins.with;
            if (before > wanted) break;
        }
        __syncthreads();
    }
    // The first token of all with which there are more than that, in weights or in tokens; `with`: their weights.
    __device__ int beyond(u64 most, bool by_weight, u64& with) {
        restore();
        for (;;) {
            u64 left = most - (by_weight ? weights_before : counts_before);
            if (parted && low == high) {
                u64 weight = ask.temperature > 0 ? weight_of(logit_of(low)) : 1, place = by_weight ? left / max(weight, 1ull) : left;
                find_equal(place);
                with = weights_before + (place + 1) * weight;
                return bins.found;
            }
            int bin = by_weight ? bin_with(bins.weights, left) : bin_with(bins.counts, (unsigned)left);
            if (!list(bin, bin)) {
                part(bin);
                continue;
            }
            u64 count = left - bins.counts[bin], before = bins.weights[bin];
            __syncthreads();
            for (int i = 0; i < 2; i++) {
                int at = 2 * threadIdx.x + i;
                bool is_found = by_weight ? before + sums[i] <= left && before + sums[i + 1] > left : at == count;
                if (is_found) bins.found = id_at(at), bins.with = weights_before + before + sums[i + 1];
            }
            __syncthreads();
            with = bins.with;
            return bins.found;
        }
    }
    // A token that is drawn.
    __device__ int draw() {
        u64 all = bins.weights[BINS], covered;
        if (ask.top_k > 0 && ask.top_k < (int)bins.counts[BINS]) {
            beyond(ask.top_k - 1, false, covered);
            all = covered;
        }
        if (ask.top_p < 1) {
            u64 wanted = (u64)ceil((double)ask.top_p * (double)all);
            beyond(max(wanted, 1ull) - 1, true, covered);
            all = min(all, covered);
        }
        u64 before = (u64)(ask.part * (double)all);
        return beyond(min(before, all - 1), true, covered);
    }
};

template <class T>
__device__ void choose(const T* logits, const Likeliest* likeliest, const float* changed, const Likeliest* of_changed, const Ask* asks, Told* told, int n) {
    __shared__ Bins bins;
    const Ask& ask = asks[blockIdx.x];
    const T* row = logits + (size_t)ask.row * n;
    Likeliest most = likeliest[ask.row];
    Told& to = told[blockIdx.x];
    float by = BINS / (FARTHEST * (ask.temperature > 0 ? ask.temperature : 1.f));
    Chooser<T> chooser{row, n, ask, most.logit, by, bins};
    int token = most.token, tops = min(ask.top, n);
    if (ask.shape >= 0) {
        Likeliest may = of_changed[ask.shape];
        token = may.token;
        Chooser<float> of_those{changed + (size_t)ask.shape * n, n, ask, may.logit, by, bins};
        if (may.logit == -INFINITY) token = -1;
        else if (ask.temperature > 0) of_those.fill(), token = of_those.draw();
        if (tops > 0) chooser.fill();
    } else {
        if (ask.temperature > 0 || tops > 0) chooser.fill();
        if (ask.temperature > 0) token = chooser.draw(), chooser.restore();
    }
    if (ask.known >= 0) token = ask.known;
    if (tops > 0 && !chooser.list(0, Chooser<T>::bin_with(bins.counts, (unsigned)tops - 1))) token = -1;
    else if (threadIdx.x < tops) to.ids[threadIdx.x] = chooser.id_at(threadIdx.x), to.logits[threadIdx.x] = chooser.logit_at(threadIdx.x);
    if (threadIdx.x == 0) to.token = token, to.logit = token >= 0 && token < n ? widen(row[token]) : NAN;
}
K __launch_bounds__(THREADS)
    choose_bf16(const bf16* logits, const Likeliest* likeliest, const float* changed, const Likeliest* of_changed, const Ask* asks, Told* told, int n) {
    choose(logits, likeliest, changed, of_changed, asks, told, n);
}
K __launch_bounds__(THREADS)
    choose_f32(const float* logits, const Likeliest* likeliest, const float* changed, const Likeliest* of_changed, const Ask* asks, Told* told, int n) {
    choose(logits, likeliest, changed, of_changed, asks, told, n);
}
