// Copies rows of `width` elements to rows of `stored`, and writes zeros behind them.
//
// LANES neighbouring lanes move neighbouring elements of a row, of ROWS rows at a time: whole lines are read and written,
// and enough of them are in flight for the memory's full rate.
//
// Compiled once a configuration: Element, an unsigned integer of the size of one   LANES

#define ROWS 4

// Grid: x blocks of 256 / LANES * ROWS rows.
extern "C" __global__ void __launch_bounds__(256)
pad_rows(const Element *__restrict__ x, long long x_stride, long long rows, long long width, Element *__restrict__ out,
         long long stored) {
    long long first = ((long long)blockIdx.x * 256 + threadIdx.x) / LANES * ROWS;
#pragma unroll 4
    for (long long f = threadIdx.x % LANES; f < stored; f += LANES) {
        Element v[ROWS];
#pragma unroll
        for (int n = 0; n < ROWS; ++n) v[n] = first + n < rows && f < width ? x[(first + n) * x_stride + f] : 0;
#pragma unroll
        for (int n = 0; n < ROWS; ++n)
            if (first + n < rows) out[(first + n) * stored + f] = v[n];
    }
}
