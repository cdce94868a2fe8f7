// The index of sketch attention on a GPU: hash codes, and one sorted array with the rows of all
// tables.
//
// attnbook/sketch/cuda_hash.py compiles numbers.cu, this file and sketch.cu, as one, when they are
// first needed. Every kernel names the Python function that it must agree with;
// tests/sketch/test_sketch_cuda.py runs this same source on the CPU against those functions.
//
// Letters: n keys, n_q queries, L tables, K projections a table, d and d_v widths. Arrays are
// C-contiguous; whatever counts elements has 64 bits. Acc is the type to compute in: float for
// half precision and float, double for double.

constexpr int ROW_BITS = 31;  // of an owner, which is (table << 31) | row
constexpr double FARTHEST = 4611686018427387904.0;  // 2^62, see stable_hash.py

__device__ int64 thread_in_grid() { return (int64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ int64 threads_in_grid() { return (int64)gridDim.x * blockDim.x; }

// ------------------------------------------------------------------------------------- hashing

// One projection a·x to its code: StableHash.codes, or SimHash.codes where there is no offset.
// Clears *good if a·x is not finite or the code does not fit.
template <typename Acc>
__device__ int64 code_of(Acc along, const Acc *offset, Acc width, int *good) {
    if (!(fabs(along) < (Acc)infinity())) *good = 0;  // NaN too
    if (offset == nullptr) return along >= 0;
    Acc number = floor((along + *offset) / width);
    if (!(fabs(number) <= (Acc)FARTHEST)) *good = 0;
    return *good ? (int64)number : 0;
}

// SimHash.signatures and StableHash.signatures, after the matrix product: one thread for a point
// and a table joins K codes with multipliers, 1, 2, 4 ... or odd ones, modulo 2^64. `bad` is set
// to 1 if one of the signatures cannot be given.
template <typename Acc>
__global__ void signatures_of(
    const Acc *__restrict__ along,          // (n, L, K)
    const Acc *__restrict__ offsets,        // (L, K), or null for SimHash
    double width,
    const int64 *__restrict__ multipliers,  // (K,)
    int64 n, int n_tables, int n_projections,
    int64 *__restrict__ signatures,         // (n, L)
    int *bad)                               // (1,) in the memory of the host
{
    for (int64 i = thread_in_grid(); i < n * n_tables; i += threads_in_grid()) {
        const int64 table = i % n_tables;
        uint64 sum = 0;
        int good = 1;
        for (int j = 0; j < n_projections; ++j) {
            const Acc *offset = offsets ? offsets + table * n_projections + j : nullptr;
            int64 code = code_of(along[i * n_projections + j], offset, (Acc)width, &good);
            sum += (uint64)code * (uint64)multipliers[j];
        }
        signatures[i] = (int64)sum;
        if (!good) *bad = 1;
    }
}

// ------------------------------------------------------------------------------------- tables

// bucket_tables.scrambled, with a salt for each table: SplitMix64 (Steele, Lea and Flood 2014).
// For one table, different signatures have different bits.
__device__ uint64 scrambled(int64 signature, int64 salt, int table) {
    uint64 x = (uint64)signature ^ ((uint64)salt + (uint64)table * 0x9E3779B97F4A7C15ULL);
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    return x ^ x >> 31;
}

// The tables of a CudaIndex. An entry is a row in a table: its scrambled signature, and its owner.
// Entries ascend, so the rows of a bucket lie side by side and ascend. The first `bits` of a
// scrambled signature are its cell, and `starts` says where each cell starts.
struct Tables {
    const int64 *__restrict__ starts;    // (2^bits + 1,)
    const uint64 *__restrict__ entries;  // (N, 2)
    int bits;                            // at least 1
    int64 salt;
};

struct Bucket {
    int64 start, count;  // of its entries
};

// The first of the entries from `first` to `last` that does not come before (wanted, owner).
__device__ int64 first_not_before(
    const uint64 *__restrict__ entries, int64 first, int64 last, uint64 wanted, uint64 owner)
{
    while (first < last) {
        const int64 middle = (first + last) / 2;
        const uint64 held = entries[2 * middle];
        if (held < wanted || (held == wanted && entries[2 * middle + 1] < owner))
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

// The bucket of a signature in a table. Equal bits may come from another table; the owner tells.
__device__ Bucket find_bucket(const Tables &tables, int64 signature, int table) {
    const uint64 wanted = scrambled(signature, tables.salt, table), owner = (uint64)table;
    const int64 cell = wanted >> (64 - tables.bits), last = tables.starts[cell + 1];
    const int64 start = first_not_before(
        tables.entries, tables.starts[cell], last, wanted, owner << ROW_BITS);
    const int64 stop = first_not_before(
        tables.entries, start, last, wanted, (owner + 1) << ROW_BITS);
    return {start, stop - start};
}

__device__ int64 row_of(const Tables &tables, int64 place) {
    return tables.entries[2 * place + 1] & ((1ULL << ROW_BITS) - 1);
}

// The scrambled signatures of the rows of all tables, table after table.
extern "C" __global__ void scramble(
    const int64 *__restrict__ signatures,  // (n_rows, L) of all rows, ever
    const int64 *__restrict__ live,        // (n,) rows that were not removed; null: the first n
    int64 n, int n_tables, int64 salt,
    uint64 *__restrict__ bits_of)          // (L, n)
{
    for (int64 i = thread_in_grid(); i < n * n_tables; i += threads_in_grid()) {
        const int table = i / n;
        const int64 row = live ? live[i % n] : i % n;
        bits_of[i] = scrambled(signatures[row * n_tables + table], salt, table);
    }
}

// The entries of all tables, and by binary search where each cell starts.
extern "C" __global__ void fill_tables(
    const uint64 *__restrict__ bits_of,  // (L, n) as `scramble` leaves them
    const int64 *__restrict__ order,     // (L n,) what sorts them, stably
    const int64 *__restrict__ live, int64 n, int64 n_entries, int bits,
    uint64 *__restrict__ entries,        // (L n, 2)
    int64 *__restrict__ starts)          // (2^bits + 1,)
{
    for (int64 i = thread_in_grid(); i < n_entries; i += threads_in_grid()) {
        const int64 place = order[i], row = live ? live[place % n] : place % n;
        entries[2 * i] = bits_of[place];
        entries[2 * i + 1] = (uint64)(place / n) << ROW_BITS | (uint64)row;
    }
    for (int64 cell = thread_in_grid(); cell <= 1LL << bits; cell += threads_in_grid()) {
        int64 first = 0, last = n_entries;
        while (first < last) {
            const int64 middle = (first + last) / 2;
            if ((int64)(bits_of[order[middle]] >> (64 - bits)) < cell) first = middle + 1;
            else last = middle;
        }
        starts[cell] = first;
    }
}

// BucketIndex.counts, and where among the entries the buckets start.
extern "C" __global__ void find_buckets(
    const int64 *__restrict__ signatures,  // (n_q, L)
    int64 n_queries, int n_tables,
    const int64 *__restrict__ table_starts, const uint64 *__restrict__ entries, int bits,
    int64 salt,                            // these four make Tables
    int64 *__restrict__ starts, int64 *__restrict__ counts)  // (n_q, L)
{
    const Tables tables = {table_starts, entries, bits, salt};
    for (int64 i = thread_in_grid(); i < n_queries * n_tables; i += threads_in_grid()) {
        const Bucket bucket = find_bucket(tables, signatures[i], i % n_tables);
        starts[i] = bucket.start;
        counts[i] = bucket.count;
    }
}
