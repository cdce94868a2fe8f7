// What every CUDA source of the package begins with: float16, bfloat16, and sums over a warp.
//
// Half precision is only kept and moved. `widen` turns a number into the type that is computed in,
// `narrow` rounds a result back, once.

typedef long long int64;
typedef unsigned long long uint64;

constexpr int WARP = 32;               // lanes that run in step
constexpr unsigned ALL = 0xffffffffu;  // every lane of a warp takes part

__device__ float infinity() { return __uint_as_float(0x7f800000); }
__device__ float not_a_number() { return __uint_as_float(0x7fc00000); }

struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };

#ifdef __CUDACC__  // an instruction each; the tests have their own for the CPU
__device__ float widen(float16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
__device__ void narrow(float x, float16 *y) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
}
#endif
__device__ float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ void narrow(float x, bfloat16 *y) {  // to the nearest, halves to even
    const unsigned bits = __float_as_uint(x);
    y->bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
__device__ float widen(float x) { return x; }
__device__ double widen(double x) { return x; }
__device__ void narrow(float x, float *y) { *y = x; }
__device__ void narrow(double x, double *y) { *y = x; }

// The sum over the first `lanes` lanes, the next ones and so on, in every lane; a power of 2.
template <typename Acc>
__device__ Acc warp_sum(Acc x, int lanes = WARP) {
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

// The largest of them; a NaN is passed over.
template <typename Acc>
__device__ Acc warp_max(Acc x, int lanes = WARP) {
    for (int step = lanes / 2; step > 0; step /= 2) {
        Acc other = __shfl_xor_sync(ALL, x, step);
        x = other > x ? other : x;
    }
    return x;
}
