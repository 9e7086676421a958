// out[e] = <a_i, b_j> for every edge e: j -> i, on tensor cores, edges in bit blocks (see bitblock_spmm.cu).
//
// One warp walks the blocks of one work item two at a time: 16 gathered rows of b are the 16-wide side of the MMA, the 8
// rows of the window its 8-wide side, features its depth. Which feature a depth index stands for is free as long as both
// operands agree: lane t of a group holds 16 neighbouring bytes, so both are loaded straight into fragments. Results are
// read back only where the mask has a bit.
//
//   fp32: m16n8k8 tf32; IEEE adds lo*hi and hi*lo, error about 2^-21.   fp16, bf16: m16n8k16, fp32 accumulation.
//
// Compiled once a configuration:
//   TYPE 0 fp32, 1 fp16, 2 bf16   CHUNKS groups of 4 * VEC features   KEEP 1: they cover the width, the window stays in
//   registers; 0: loop over groups of CHUNKS   IEEE 0/1 (fp32 only)   ALIGNED 0/1: rows start at multiples of 16 bytes

#include "element.cuh"
#include "mma.cuh"

#if TYPE == 0
#define VEC 4
#else
#define VEC 8
#endif
#define SPAN (CHUNKS * 4 * VEC)   // features of one pass

// 16 bytes of a feature row; zeros past its end.
__device__ __forceinline__ uint4 load(const Element *row, int feature, int width) {
    u32 words[4] = {};
#if ALIGNED
    if (feature < width) return __ldg((const uint4 *)(row + feature));
#else
#pragma unroll
    for (int i = 0; i < VEC; ++i)
        if (feature + i < width) {
#if TYPE == 0
            words[i] = __float_as_uint(__ldg(row + feature + i));
#else
            words[i / 2] |= (u32)__ldg(row + feature + i) << (16 * (i & 1));
#endif
        }
#endif
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Depth 4 * VEC: rows of blocks 0 and 1 against the window.
__device__ __forceinline__ void multiply(float (&c)[4], const uint4 &first, const uint4 &second, const uint4 &window) {
    const u32 x[4] = {first.x, first.y, first.z, first.w}, y[4] = {second.x, second.y, second.z, second.w};
    const u32 w[4] = {window.x, window.y, window.z, window.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        int p = 2 * j, q = 2 * j + 1;
#if TYPE == 0 && IEEE
        u32 xp = round_tf32(x[p]), xq = round_tf32(x[q]), yp = round_tf32(y[p]), yq = round_tf32(y[q]);
        u32 wp = round_tf32(w[p]), wq = round_tf32(w[q]);
        mma(c, rest_of(x[p], xp), rest_of(y[p], yp), rest_of(x[q], xq), rest_of(y[q], yq), wp, wq);
        mma(c, xp, yp, xq, yq, rest_of(w[p], wp), rest_of(w[q], wq));
        mma(c, xp, yp, xq, yq, wp, wq);
#elif TYPE == 0
        mma(c, to_tf32(x[p]), to_tf32(y[p]), to_tf32(x[q]), to_tf32(y[q]), to_tf32(w[p]), to_tf32(w[q]));
#else
        mma(c, x[p], y[p], x[q], y[q], w[p], w[q]);
#endif
    }
}

// Grid: x work items (WARPS a thread block), z heads.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
bitblock_sddmm(const int *items, long long num_items, const int *block_col, const u64 *block_mask,
               const SlotIndex *block_slot, const SlotIndex *slot_entry, const SlotIndex *slot_ptr, const SlotIndex *edge,
               const int *row_order, const Element *a, const Element *b, Element *out, long long num_rows,
               long long width64, long long heads) {
    long long item = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= num_items) return;
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, head = blockIdx.z, width = (int)width64;
    long long stride = heads * width;
    int4 work = __ldg((const int4 *)items + item);
    a += (long long)head * width;
    b += (long long)head * width;

    int place = work.x * 8 + g;
    bool row_exists = place < num_rows;
    const Element *window_row = a + (row_exists ? (row_order ? row_order[place] : place) : 0) * stride;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 window[CHUNKS];
#if KEEP
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) window[i] = row_exists ? load(window_row, (i * 4 + t) * VEC, width) : zero;
#endif

    for (int block = work.y; block < work.z; block += 2) {
        bool pair = block + 1 < work.z;
        int col0 = __ldg(block_col + (long long)block * 8 + g), col1 = pair ? __ldg(block_col + (long long)block * 8 + 8 + g) : -1;
        u64 mask0 = __ldg(block_mask + block), mask1 = pair ? __ldg(block_mask + block + 1) : 0;
        const Element *row0 = b + (long long)(col0 < 0 ? 0 : col0) * stride, *row1 = b + (long long)(col1 < 0 ? 0 : col1) * stride;
        float c[4] = {};
#if KEEP
        const int begin = 0;
#else
        for (int begin = 0; begin < width; begin += SPAN)
#endif
        {
            uint4 x[CHUNKS], y[CHUNKS];
#pragma unroll
            for (int i = 0; i < CHUNKS; ++i) {
                int feature = begin + (i * 4 + t) * VEC;
                x[i] = col0 >= 0 ? load(row0, feature, width) : zero;
                y[i] = col1 >= 0 ? load(row1, feature, width) : zero;
#if !KEEP
                window[i] = row_exists ? load(window_row, feature, width) : zero;
#endif
            }
#pragma unroll
            for (int i = 0; i < CHUNKS; ++i) multiply(c, x[i], y[i], window[i]);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {   // c[n]: condensed column g of block n / 2, window row 2t + n % 2
            u64 mask = n < 2 ? mask0 : mask1;
            int r = 2 * t + (n & 1), bit = r * 8 + g;
            if (!((mask >> bit) & 1)) continue;
            float value = c[n];
            if (value != value) {       // Inf or NaN among the operands: the split would turn Inf into NaN
                int where = work.x * 8 + r;
                const Element *left = a + (row_order ? row_order[where] : where) * stride, *right = n < 2 ? row0 : row1;
                value = 0;
                for (int f = 0; f < width; ++f) value += to_sum(left[f]) * to_sum(right[f]);
            }
            SlotIndex slot = __ldg(block_slot + block + (n >> 1)) + __popcll(mask & ((1ull << bit) - 1));
            SlotIndex first = slot, last = slot + 1;
            if (slot_ptr) first = slot_ptr[slot], last = slot_ptr[slot + 1];
            for (SlotIndex k = first; k < last; ++k) {
                SlotIndex entry = __ldg(slot_entry + k);
                out[(long long)(edge ? __ldg(edge + entry) : entry) * heads + head] = from_sum(value);
            }
        }
    }
}
