//! The machine code that was compiled, and the kernels in it.

/// What a kernel's name ends with in its versions.
pub type Versions = &'static [&'static str];
const SINGLE: Versions = &[""];
const TYPES: Versions = &["_bf16", "_f32"];
const HEAD_SIZES: Versions = &["_64", "_128"];
const ROW_COUNTS: Versions = &["_8", "_16"];
/// Rows and outputs, of bf16 and of 8-bit floats; and those of 8-bit floats alone.
const BOTH_TILES: Versions = &["_32x32", "_32x48", "_32x64", "_32x112", "_64x32", "_64x48", "_64x64", "_64x112"];
const EIGHT_TILES: Versions = &["_8x32", "_8x48", "_16x32", "_16x48"];
const ROWS_TAKEN: Versions = &["", "_eight"];
const FLOAT8: Versions = &["_float8"];
const BLOCK_ROW_COUNTS: Versions = &["_16", "_16_alone", "_64"];

/// Versions of kernels that may ask for all shared memory that there is.
pub const LARGE: &[Versions] = &[HEAD_SIZES, ROW_COUNTS, BOTH_TILES, EIGHT_TILES, BLOCK_ROW_COUNTS, ROWS_TAKEN, FLOAT8];

/// What a source was compiled to for each target, and the kernels in it.
pub type Module = (&'static [u8], &'static [Kernels]);
/// Kernels that have the same versions.
pub type Kernels = (Versions, &'static [&'static str]);

/// All that is compiled.
pub const MODULES: &[Module] = &[
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/elementwise.fatbin")),
        &[
            (TYPES, &["embed", "rms_norm", "rms_norm_wide", "gated_silu", "gated_silu_wide", "silu"]),
            (TYPES, &["split_rotate", "split_rotate_wide", "join_heads", "cast_to", "random_fill"]),
            (TYPES, &["copy_heads", "copy_heads_wide"]),
            (SINGLE, &["cancelling_fill"]),
        ],
    ),
    (include_bytes!(concat!(env!("OUT_DIR"), "/products.fatbin")), &[(TYPES, &["linear"])]),
    (include_bytes!(concat!(env!("OUT_DIR"), "/few.fatbin")), &[(ROW_COUNTS, &["linear_few", "gated_few"])]),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/few_hopper.fatbin")),
        &[(EIGHT_TILES, &["linear_few_eight"]), (BOTH_TILES, &["linear_few_eight", "linear_few_half"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/block_weights.fatbin")),
        &[(BLOCK_ROW_COUNTS, &["linear_blocks"]), (SINGLE, &["widen_blocks"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/eight.fatbin")),
        &[(SINGLE, &["quantize", "quantize_norm", "quantize_gated", "add_bf16"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/moves.fatbin")),
        &[
            (TYPES, &["merge", "gather", "mean_rows", "key_dots", "merge_outputs", "merge_outputs_carried"]),
            (SINGLE, &["merge_into", "merge_into_wide", "merge_rows", "merge_rows_carried", "top_k", "put"]),
            (SINGLE, &["copy_columns", "copy_runs", "differ", "place_rows", "keep_maps"]),
        ],
    ),
    (include_bytes!(concat!(env!("OUT_DIR"), "/sampling.fatbin")), &[(TYPES, &["likeliest", "shape", "choose"])]),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/kept.fatbin")),
        &[
            (TYPES, &["keep_rows", "widen_rows"]),
            (SINGLE, &["turn_queries", "place_rows_eight", "pack_codes", "unpack_codes"]),
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/attention.fatbin")),
        &[
            (HEAD_SIZES, &["attend_whole", "attend_into", "attend_tile", "attend_rows_shallow", "attend_rows"]),
            (HEAD_SIZES, &["attend_listed_tile", "attend_listed_rows_shallow", "attend_listed_rows"]),
            (
                HEAD_SIZES,
                &["attend_listed_tile_carried", "attend_listed_rows_shallow_carried", "attend_listed_rows_carried"],
            ),
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/hopper.fatbin")),
        &[
            (HEAD_SIZES, &["attend_narrow", "attend_narrow_deep", "attend_wide"]),
            (HEAD_SIZES, &["attend_listed_narrow", "attend_listed_narrow_deep", "attend_listed_wide"]),
            (HEAD_SIZES, &["attend_listed_narrow_carried", "attend_listed_narrow_deep_carried"]),
            (HEAD_SIZES, &["attend_listed_wide_carried"]),
            (HEAD_SIZES, &["attend_laid_narrow", "attend_laid_narrow_deep", "attend_laid_wide"]),
            (
                HEAD_SIZES,
                &["attend_laid_narrow_carried", "attend_laid_narrow_deep_carried", "attend_laid_wide_carried"],
            ),
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/codes.fatbin")),
        &[
            (HEAD_SIZES, &["attend_eight_few", "attend_listed_eight_few", "attend_listed_eight_few_carried"]),
            (HEAD_SIZES, &["attend_eight", "attend_listed_eight", "attend_listed_eight_carried"]),
            (HEAD_SIZES, &["attend_laid_eight_few", "attend_laid_eight"]),
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/float8.fatbin")),
        &[(FLOAT8, &["centre", "queries", "keys", "values", "attend"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/combine.fatbin")),
        &[
            (HEAD_SIZES, &["combine", "combine_placed", "combine_placed_carried"]),
            (HEAD_SIZES, &["combine_deep", "combine_placed_deep", "combine_placed_carried_deep"]),
            (HEAD_SIZES, &["combine_merged", "combine_merged_deep", "combine_merged_flat"]),
        ],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/exchange.fatbin")),
        &[
            (SINGLE, &["signal", "fetch_lent", "all_gather", "all_gather_early"]),
            (ROWS_TAKEN, &["all_gather_rows", "all_gather_early_rows"]),
        ],
    ),
    (include_bytes!(concat!(env!("OUT_DIR"), "/selected.fatbin")), &[(HEAD_SIZES, &["attend_selected"])]),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/stripes.fatbin")),
        &[(TYPES, &["pool_queries", "find_stripes", "find_stripes_wide"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/selected_hopper.fatbin")),
        &[(HEAD_SIZES, &["attend_selected_warpgroup"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/estimates.fatbin")),
        &[(HEAD_SIZES, &["masses"]), (TYPES, &["plain_masses"]), (SINGLE, &["join_diagonals"])],
    ),
    (
        include_bytes!(concat!(env!("OUT_DIR"), "/blocks.fatbin")),
        &[(SINGLE, &["attend_means", "choose_lines", "cover_means", "mark_blocks"])],
    ),
    (include_bytes!(concat!(env!("OUT_DIR"), "/lists.fatbin")), &[(SINGLE, &["list_bits", "list_lines"])]),
    (include_bytes!(concat!(env!("OUT_DIR"), "/plain.fatbin")), &[(TYPES, &["attend_plain"])]),
];
/// Beginnings of the names of kernels that wait for those before them by themselves, where the GPU has that.
pub const FOLLOWERS: &[&str] = &[
    "embed",
    "rms_norm",
    "gated_silu",
    "split_rotate",
    "copy_heads",
    "cast_to",
    "merge_into",
    "merge_rows",
    "merge_outputs",
    "put",
    "copy_columns",
    "copy_runs",
    "place_rows",
    "keep_rows",
    "widen_rows",
    "turn_queries",
    "pack_codes",
    "unpack_codes",
    "quantize",
    "add_bf16",
    "attend_whole",
    "attend_into",
    "attend_listed",
    "attend_laid",
    "attend_selected",
    "attend_narrow",
    "attend_wide",
    "attend_eight",
    "combine",
    "signal",
    "fetch_lent",
    "all_gather",
    "linear_few",
    "gated_few",
    "linear_blocks",
    "widen_blocks",
];
/// Beginnings of the names of those that let the next one start before they have waited.
pub const EARLY: &[&str] = &[
    "rms_norm",
    "quantize",
    "split_rotate",
    "merge_rows",
    "merge_outputs",
    "copy_columns",
    "copy_runs",
    "place_rows",
    "combine",
    "signal",
    "all_gather_early",
];
