// What kernels of attention over lists are told, and how they walk through a list.
#pragma once
#include "lists.cuh"

constexpr int TILE = 64;  // rows of a block of threads

struct Selected {
    const bf16 *q, *k, *v;
    float *out, *lse;
    // Ranges of (head, row / rows) are ranges[offsets[list]..offsets[list + 1]].
    const unsigned long long* offsets;
    const Range* ranges;
    // Highest score of each row, (head, token), where they are wanted.
    float* maxima;
    long long q_head, q_row, kv_head, kv_row, out_head, out_row;
    int tokens, group, rows, groups;
    float scale;
    int unused;
};
constexpr int NONE = 0x7fffffff;  // no key: behind every row

// A tile of rows and its list.
struct Walk {
    const Range* ranges;
    // The tile's rows; ranges that begin before they end, and keys in those.
    int start, end, seen, keys, cursor;
    // The range asked for last, and how many keys of the list come before its end.
    Range now;
    int until;
    __device__ __forceinline__ Walk(const Selected& a) {
        // The last groups have the most keys.
        int tiles = (min(a.rows, a.tokens) + TILE - 1) / TILE, group = a.groups - 1 - (int)blockIdx.x / tiles;
        start = group * a.rows + blockIdx.x % tiles * TILE, end = min(min((group + 1) * a.rows, a.tokens), start + TILE);
        size_t list = (size_t)blockIdx.y * a.groups + group;
        seen = keys = cursor = until = 0, ranges = nullptr;
        if (start >= end) return;
        ranges = a.ranges + a.offsets[list];
        for (int high = (int)(a.offsets[list + 1] - a.offsets[list]); seen < high;) {
            int middle = (seen + high) / 2;
            if ((int)ranges[middle].start < end) seen = middle + 1;
            else high = middle;
        }
        if (seen > 0) keys = ranges[seen - 1].before + min((int)ranges[seen - 1].end, end) - ranges[seen - 1].start;
    }
    // The key at a place of the list, which is at most `STEP` behind the one asked for before.
    template <int STEP> __device__ __forceinline__ int key(int at) {
        if (at >= keys) return NONE;
        if (at >= until) {
            for (int high = min(cursor + STEP, seen - 1); cursor < high;) {
                int middle = (cursor + high + 1) / 2;
                if ((int)ranges[middle].before <= at) cursor = middle;
                else high = middle - 1;
            }
            now = ranges[cursor];
            until = now.before + now.end - now.start;
        }
        return now.start + at - now.before;
    }
};
