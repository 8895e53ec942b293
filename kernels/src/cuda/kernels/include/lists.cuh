// Lists of the keys that rows of a query head see.
#pragma once
#include "common.cuh"

// Keys from `start` to `end`, so many of the list before them.
struct Range {
    unsigned start, end, before;
};
