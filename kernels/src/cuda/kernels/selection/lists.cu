// Lists of keys from what was chosen: bits of keys, or columns and diagonals. Each kernel runs twice: it counts the ranges of each list, and
// once the host has said where each list begins, it writes them.
#include "lists.cuh"

struct Lists {
    // None: count.
    Range* ranges;
    const unsigned long long* offsets;
    // Of each list: ranges, and pairs of a row and a key that does not come after it.
    unsigned long long* counts;
    // Lists of (head, row / rows), `groups` to a head.
    int rows, groups, tokens, lists;
};

// Pairs of the rows of a group and the keys below `end`.
struct Below {
    unsigned long long start, end;
    __device__ __forceinline__ Below(const Lists& a, int group) {
        start = min((long long)group * a.rows, (long long)a.tokens), end = min((group + 1ll) * a.rows, (long long)a.tokens);
    }
    __device__ __forceinline__ unsigned long long operator()(unsigned long long key) const {
        unsigned long long cut = key < start ? start : key > end ? end : key;
        return (cut * (cut + 1) - start * (start + 1)) / 2 + (end - cut) * key;
    }
};

struct Bits {
    Lists to;
    // A bit for each `unit` keys of each list, lowest first.
    const unsigned* bits;
    int words, unit;
};
__device__ __forceinline__ unsigned long long warp_total(unsigned long long x) {
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
    return x;
}
// What the lanes before have of `x`, and `all`.
__device__ __forceinline__ unsigned warp_before(unsigned x, unsigned& all) {
    unsigned lane = threadIdx.x % 32, sum = x;
    for (int by = 1; by < 32; by *= 2) {
        unsigned other = __shfl_up_sync(~0u, sum, by);
        if (lane >= by) sum += other;
    }
    all = __shfl_sync(~0u, sum, 31);
    return sum - x;
}

// A warp a list.
extern "C" __global__ __launch_bounds__(128) void list_bits(const __grid_constant__ Bits a) {
    int list = (int)(blockIdx.x * 4 + threadIdx.x / 32), lane = threadIdx.x % 32;
    if (list >= a.to.lists) return;
    Below below(a.to, list % a.to.groups);
    const unsigned* bits = a.bits + (size_t)list * a.words;
    Range* ranges = a.to.ranges ? a.to.ranges + a.to.offsets[list] : nullptr;
    unsigned starts = 0, ends = 0, keys = 0, carry = 0;
    unsigned long long pairs = 0;
    auto key = [&](int word, int bit) { return min((unsigned)(word * 32 + bit) * (unsigned)a.unit, (unsigned)a.to.tokens); };
    for (int first = 0; first < a.words; first += 32) {
        int word = first + lane;
        unsigned own = word < a.words ? bits[word] : 0, top = own >> 31, before = __shfl_up_sync(~0u, top, 1);
        if (lane == 0) before = carry;
        carry = __shfl_sync(~0u, top, 31);
        unsigned behind = own << 1 | before, begin = own & ~behind, end = behind & ~own, all_starts, all_ends, all_keys;
        unsigned at_start = starts + warp_before(__popc(begin), all_starts), at_end = ends + warp_before(__popc(end), all_ends);
        unsigned at_key = keys + warp_before(__popc(own), all_keys);
        starts += all_starts, ends += all_ends, keys += all_keys;
        for (; begin; begin &= begin - 1) {
            int bit = __ffs(begin) - 1;
            if (ranges) {
                Range& range = ranges[at_start++];
                range.start = key(word, bit), range.before = (at_key + __popc(own & ((1u << bit) - 1))) * (unsigned)a.unit;
            } else pairs -= below(key(word, bit));
        }
        for (; end; end &= end - 1) {
            int bit = __ffs(end) - 1;
            if (ranges) ranges[at_end++].end = key(word, bit);
            else pairs += below(key(word, bit));
        }
    }
    if (carry && lane == 0) {
        // The last word ends with a key that is there.
        if (ranges) ranges[ends].end = a.to.tokens;
        else pairs += below(a.to.tokens);
    }
    if (ranges) return;
    pairs = warp_total(pairs);
    if (lane == 0) a.to.counts[2 * list] = starts, a.to.counts[2 * list + 1] = pairs;
}

struct Lines {
    Lists to;
    // Of each head, ascending: keys, and how far keys lie before rows.
    const unsigned *columns, *offsets;
    int column_count, offset_count;
};
constexpr int NO_KEY = 0x7fffffff;
// Ranges as they come to a warp, adjacent ones joined.
struct Joined {
    Range* ranges;
    unsigned start, end, before, count;
    unsigned long long pairs;
    __device__ __forceinline__ void close(const Below& below) {
        if (start == end) return;
        if (ranges && threadIdx.x % 32 == 0) ranges[count] = Range{start, end, before};
        if (!ranges) pairs += below(end) - below(start);
        before += end - start, count++;
    }
    __device__ __forceinline__ void add(unsigned first, unsigned last, const Below& below) {
        if (first >= last) return;
        if (first == end && start != end) {
            end = last;
            return;
        }
        close(below);
        start = first, end = last;
    }
};

// MInference's keys of `rows` rows: blocks of as many keys where offsets lead, joined while they touch, and columns between them. A warp a
// list, whose lanes look ahead.
extern "C" __global__ __launch_bounds__(128) void list_lines(const __grid_constant__ Lines a) {
    int list = (int)(blockIdx.x * 4 + threadIdx.x / 32), lane = threadIdx.x % 32;
    if (list >= a.to.lists) return;
    int head = list / a.to.groups, group = list % a.to.groups, width = a.to.rows, end = (group + 1) * width, limit = min(end, a.to.tokens);
    Below below(a.to, group);
    const unsigned *columns = a.columns + (size_t)head * a.column_count, *offsets = a.offsets + (size_t)head * a.offset_count;
    Joined out = {a.to.ranges ? a.to.ranges + a.to.offsets[list] : nullptr, 0, 0, 0, 0, 0};
    int column = 0, start = 0, stop = 0, seen = 0;
    // Columns from `column` on and below `bound`, each given to `take`.
    auto pass = [&](int bound, auto take) {
        for (int count = 32; count == 32; column += count) {
            int own = column + lane < a.column_count ? (int)columns[column + lane] : NO_KEY;
            count = __popc(__ballot_sync(~0u, own < bound));
            take(own, count);
        }
    };
    auto add = [&](int own, int count) {
        for (int i = 0; i < count; i++) {
            int key = __shfl_sync(~0u, own, i);
            out.add(key, key + 1, below);
        }
    };
    auto flush = [&] {
        pass(min(start, limit), add);
        out.add(min(start, limit), min(stop, limit), below);
        pass(stop, [](int, int) {});
    };
    for (int high = a.offset_count; seen < high;) {
        int middle = (seen + high) / 2;
        if ((int)offsets[middle] < end) seen = middle + 1;
        else high = middle;
    }
    for (int i = seen - 1; i >= 0;) {
        // On from the first offset that leads behind the block; `i` is the last that may.
        int own = i >= lane ? (int)offsets[i - lane] : -1;
        int passed = __popc(__ballot_sync(~0u, own >= end - stop && own >= 0));
        if (passed == 32 || i - passed < 0) {
            i -= passed;
            continue;
        }
        int last = max(end - __shfl_sync(~0u, own, passed), width);
        i -= passed;
        if (stop > 0 && last <= stop + width) {
            stop += width;
            continue;
        }
        flush();
        start = last - width, stop = last;
    }
    flush();
    pass(limit, add);
    out.close(below);
    if (lane == 0 && !out.ranges) a.to.counts[2 * list] = out.count, a.to.counts[2 * list + 1] = out.pairs;
}
