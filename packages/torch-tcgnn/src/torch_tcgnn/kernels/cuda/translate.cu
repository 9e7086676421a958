// Bit blocks (bitblock.py) of compressed rows whose columns strictly ascend, a thread an entry: no step waits for a row.
//
// The distinct columns of a window of 8 rows are its fresh entries: those whose column no earlier row of the window has. A
// column's place among them is the number of fresh entries before it in each of the 8 rows: a binary search finds where it
// would stand in a row, and a scan counts. A block is, of each row, the entries from its first column to the next block's.
//
//   bitblock_mark      which entries are fresh; whether some row does not strictly ascend
//   (scan)             fresh[k] becomes the number of fresh entries up to k
//   bitblock_windows   entries and blocks of each window
//   (scan)             first block, and first slot, of the windows that were chosen
//   bitblock_columns   the condensed columns of the blocks
//   bitblock_slots     masks, first slots, and entries in slot order
//
// Compiled once a configuration:   Index of entries: int, long long   THREADS a thread block

typedef unsigned char u8;
typedef long long i64;

// The last of `count` ascending starts that is not after `at`; starts[0] is not.
template <typename Start>
__device__ __forceinline__ i64 holder(const Start *starts, i64 count, i64 at) {
    i64 low = 0;
    while (count > 1) {
        i64 half = count / 2;
        if (__ldg(starts + low + half) <= at) low += half;
        count -= half;
    }
    return low;
}

// The first entry of [begin, end) whose column is not below `column`.
__device__ __forceinline__ Index place(const int *col, Index begin, Index end, int column) {
    while (begin < end) {
        Index middle = begin + (end - begin) / 2;
        if (__ldg(col + middle) < column) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

// Fresh entries before entry k, of their running count.
__device__ __forceinline__ Index before(const Index *fresh, Index k) { return k ? __ldg(fresh + k - 1) : 0; }

// Grid: threads are entries.
extern "C" __global__ void __launch_bounds__(THREADS)
bitblock_mark(const Index *rowptr, const int *col, i64 num_rows, i64 num_entries, Index *fresh, i64 *unsorted) {
    i64 k = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (k >= num_entries) return;
    i64 row = holder(rowptr, num_rows, k);
    int column = col[k];
    if (k > rowptr[row] && col[k - 1] >= column) *unsorted = 1;
    bool found = false;
    for (i64 r = row / 8 * 8; r < row && !found; ++r) {
        Index end = rowptr[r + 1], at = place(col, rowptr[r], end, column);
        found = at < end && col[at] == column;
    }
    fresh[k] = !found;
}

// Grid: threads are windows.
extern "C" __global__ void __launch_bounds__(THREADS)
bitblock_windows(const Index *rowptr, const Index *fresh, i64 num_rows, Index *entries, i64 *blocks) {
    i64 window = (i64)blockIdx.x * THREADS + threadIdx.x, row = window * 8;
    if (row >= num_rows) return;
    Index begin = rowptr[row], end = rowptr[row + 8 < num_rows ? row + 8 : num_rows];
    entries[window] = end - begin;
    blocks[window] = (before(fresh, end) - before(fresh, begin) + 7) / 8;
}

// Grid: threads are entries. Writes block_col where there is a column.
extern "C" __global__ void __launch_bounds__(THREADS)
bitblock_columns(const Index *rowptr, const int *col, const Index *fresh, const i64 *win_ptr, i64 num_rows,
                 i64 num_entries, int *block_col) {
    i64 k = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (k >= num_entries || fresh[k] == before(fresh, (Index)k)) return;
    i64 row = holder(rowptr, num_rows, k), window = row / 8, block = win_ptr[window];
    if (block == win_ptr[window + 1]) return;       // not chosen
    int column = col[k];
    i64 condensed = 0, end = window * 8 + 8 < num_rows ? window * 8 + 8 : num_rows;
    for (i64 r = window * 8; r < end; ++r) {
        Index begin = rowptr[r], at = r == row ? (Index)k : place(col, begin, rowptr[r + 1], column);
        condensed += before(fresh, at) - before(fresh, begin);
    }
    block_col[block * 8 + condensed] = column;
}

// Grid: 8 threads a block, one for each row of its window. win_slot: first slot of each window; null: its first entry.
extern "C" __global__ void __launch_bounds__(THREADS)
bitblock_slots(const Index *rowptr, const int *col, const i64 *win_ptr, const i64 *win_slot, const int *block_col,
               i64 num_rows, i64 num_windows, i64 num_blocks, u8 *block_mask, Index *block_slot, Index *slot_entry) {
    i64 block = ((i64)blockIdx.x * THREADS + threadIdx.x) / 8;
    if (block >= num_blocks) return;
    int lane = threadIdx.x & 7;
    unsigned mates = 0xffu << (threadIdx.x & 24);
    i64 window = holder(win_ptr, num_windows, block), row = window * 8 + lane;
    Index begin = row < num_rows ? rowptr[row] : 0, end = row < num_rows ? rowptr[row + 1] : 0;
    int mine = block_col[block * 8 + lane];         // a column; -1: none
    Index k = place(col, begin, end, __shfl_sync(mates, mine, 0, 8));
    if (block + 1 < win_ptr[window + 1]) end = place(col, k, end, block_col[block * 8 + 8]);

    // Slots go by block, row, column: entries of the window's earlier blocks come first, then those of earlier rows.
    Index slot = k - begin, upto = end - k;
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
        slot += __shfl_xor_sync(mates, slot, distance, 8);
        Index left = __shfl_up_sync(mates, upto, distance, 8);
        if (lane >= distance) upto += left;
    }
    slot += win_slot ? win_slot[window] : rowptr[window * 8];
    if (lane == 0) block_slot[block] = slot;
    if (lane == 7 && block == num_blocks - 1) block_slot[num_blocks] = slot + upto;
    slot += upto - (end - k);

    unsigned bits = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        int column = __shfl_sync(mates, mine, c, 8);
        if (k < end && col[k] == column) {
            bits |= 1u << c;
            slot_entry[slot++] = k++;
        }
    }
    block_mask[block * 8 + lane] = bits;            // row r of a window is byte r of the mask
}
