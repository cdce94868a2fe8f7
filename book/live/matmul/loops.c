/* The product of two matrices in WebAssembly with SIMD.

   NumPy in a browser has no BLAS, and its own loops walk through a matrix against the grain. These
   take their place in `np.matmul`. Arguments are those of a NumPy loop: m x n times n x p, strides in
   bytes. A browser's Python has one thread, so the room to work in is static. */
#include <wasm_simd128.h>

typedef float f32;
typedef double f64;
typedef char *at;

enum { DEPTH = 256, ROWS = 64, HIGH = 4 };

static f64 work[HIGH * 8 + DEPTH * 8 + ROWS * DEPTH];

#define DEFINE(T, V, LANES, LOAD, STORE, SPLAT, ADD, MUL, NAME)                                    \
  enum { WIDE_##T = 2 * LANES };                                                                   \
                                                                                                   \
  /* One row times a matrix whose rows lie together. */                                            \
  static void row_##T(at a, at b, at c, int n, int p, int a_n, int b_n) {                          \
    int j = 0;                                                                                     \
    for (; j + 4 * LANES <= p; j += 4 * LANES) {                                                   \
      v128_t s0 = SPLAT(0), s1 = s0, s2 = s0, s3 = s0;                                             \
      at x = a, y = b + j * sizeof(T);                                                             \
      for (int l = 0; l < n; l++, x += a_n, y += b_n) {                                            \
        v128_t k = SPLAT(*(T *)x);                                                                 \
        s0 = ADD(s0, MUL(k, LOAD(y)));                                                             \
        s1 = ADD(s1, MUL(k, LOAD(y + 16)));                                                        \
        s2 = ADD(s2, MUL(k, LOAD(y + 32)));                                                        \
        s3 = ADD(s3, MUL(k, LOAD(y + 48)));                                                        \
      }                                                                                            \
      at z = c + j * sizeof(T);                                                                    \
      STORE(z, s0);                                                                                \
      STORE(z + 16, s1);                                                                           \
      STORE(z + 32, s2);                                                                           \
      STORE(z + 48, s3);                                                                           \
    }                                                                                              \
    for (; j < p; j++) {                                                                           \
      T s = 0;                                                                                     \
      for (int l = 0; l < n; l++) s += *(T *)(a + l * a_n) * *(T *)(b + l * b_n + j * sizeof(T));  \
      *(T *)(c + j * sizeof(T)) = s;                                                               \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* Pack HIGH rows of a (or WIDE columns of b), one step of the sum after the other. */           \
  static void pack_##T(T *to, at from, int count, int room, int depth, int across, int along) {    \
    for (int l = 0; l < depth; l++)                                                                \
      for (int i = 0; i < room; i++)                                                               \
        *to++ = i < count ? *(T *)(from + i * across + l * along) : 0;                             \
  }                                                                                                \
                                                                                                   \
  static void tile_##T(T *a, T *b, int depth, at c, int c_m, int c_p, int rows, int columns,       \
                       int add, T *tile) {                                                         \
    v128_t s00 = SPLAT(0), s01 = s00, s10 = s00, s11 = s00;                                        \
    v128_t s20 = s00, s21 = s00, s30 = s00, s31 = s00;                                             \
    for (int l = 0; l < depth; l++, a += HIGH, b += WIDE_##T) {                                    \
      v128_t y0 = LOAD(b), y1 = LOAD(b + LANES), k;                                                \
      k = SPLAT(a[0]), s00 = ADD(s00, MUL(k, y0)), s01 = ADD(s01, MUL(k, y1));                     \
      k = SPLAT(a[1]), s10 = ADD(s10, MUL(k, y0)), s11 = ADD(s11, MUL(k, y1));                     \
      k = SPLAT(a[2]), s20 = ADD(s20, MUL(k, y0)), s21 = ADD(s21, MUL(k, y1));                     \
      k = SPLAT(a[3]), s30 = ADD(s30, MUL(k, y0)), s31 = ADD(s31, MUL(k, y1));                     \
    }                                                                                              \
    STORE(tile, s00), STORE(tile + LANES, s01), tile += WIDE_##T;                                  \
    STORE(tile, s10), STORE(tile + LANES, s11), tile += WIDE_##T;                                  \
    STORE(tile, s20), STORE(tile + LANES, s21), tile += WIDE_##T;                                  \
    STORE(tile, s30), STORE(tile + LANES, s31), tile -= 3 * WIDE_##T;                              \
    for (int i = 0; i < rows; i++)                                                                 \
      for (int j = 0; j < columns; j++) {                                                          \
        T *z = (T *)(c + i * c_m + j * c_p);                                                       \
        *z = (add ? *z : 0) + tile[i * WIDE_##T + j];                                              \
      }                                                                                            \
  }                                                                                                \
                                                                                                   \
  static void product_##T(at a, at b, at c, int m, int n, int p, int a_m, int a_n, int b_n,        \
                          int b_p, int c_m, int c_p, T *w) {                                       \
    if (m < HIGH && b_p == sizeof(T) && c_p == sizeof(T)) {                                        \
      for (int i = 0; i < m; i++) row_##T(a + i * a_m, b, c + i * c_m, n, p, a_n, b_n);            \
      return;                                                                                      \
    }                                                                                              \
    if (n == 0)                                                                                    \
      for (int i = 0; i < m; i++)                                                                  \
        for (int j = 0; j < p; j++) *(T *)(c + i * c_m + j * c_p) = 0;                             \
    T *tile = w, *panel = tile + HIGH * WIDE_##T, *block = panel + DEPTH * WIDE_##T;               \
    for (int l = 0; l < n; l += DEPTH) {                                                           \
      int depth = n - l < DEPTH ? n - l : DEPTH;                                                   \
      for (int i = 0; i < m; i += ROWS) {                                                          \
        int high = m - i < ROWS ? m - i : ROWS;                                                    \
        for (int r = 0; r < high; r += HIGH)                                                       \
          pack_##T(block + r * depth, a + (i + r) * a_m + l * a_n, high - r, HIGH, depth, a_m,     \
                   a_n);                                                                           \
        for (int j = 0; j < p; j += WIDE_##T) {                                                    \
          int wide = p - j < WIDE_##T ? p - j : WIDE_##T;                                          \
          pack_##T(panel, b + l * b_n + j * b_p, wide, WIDE_##T, depth, b_p, b_n);                 \
          for (int r = 0; r < high; r += HIGH)                                                     \
            tile_##T(block + r * depth, panel, depth, c + (i + r) * c_m + j * c_p, c_m, c_p,       \
                     high - r < HIGH ? high - r : HIGH, wide, l > 0, tile);                        \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  __attribute__((visibility("default"))) void NAME(at *args, int *dims, int *steps, void *data) {  \
    at a = args[0], b = args[1], c = args[2];                                                      \
    for (int o = 0; o < dims[0]; o++, a += steps[0], b += steps[1], c += steps[2])                 \
      product_##T(a, b, c, dims[1], dims[2], dims[3], steps[3], steps[4], steps[5], steps[6],      \
                  steps[7], steps[8], (T *)work);                                                          \
  }

DEFINE(f32, f32x4, 4, wasm_v128_load, wasm_v128_store, wasm_f32x4_splat, wasm_f32x4_add,
       wasm_f32x4_mul, multiply_float32)
DEFINE(f64, f64x2, 2, wasm_v128_load, wasm_v128_store, wasm_f64x2_splat, wasm_f64x2_add,
       wasm_f64x2_mul, multiply_float64)
