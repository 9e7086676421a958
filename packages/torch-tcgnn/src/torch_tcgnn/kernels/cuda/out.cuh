// The type of results: WIDE_OUT 0 the element type, 1 the type of the sums (float32 results of 16-bit features).

#if WIDE_OUT
typedef Sum Out;
__device__ __forceinline__ Out to_out(Sum f) { return f; }
#else
typedef Element Out;
__device__ __forceinline__ Out to_out(Sum f) { return from_sum(f); }
#endif
