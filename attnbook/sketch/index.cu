// The index of sketch attention on a GPU: hash codes, and Robin Hood maps over sorted rows.
//
// attnbook/sketch/_cuda.py compiles numbers.cu, this file and sketch.cu, as one, when they are
// first needed.
// Every kernel names the Python function that it must agree with; tests/test_sketch_cuda.py runs
// this same source on the CPU against those functions.
//
// Letters: n keys, n_q queries, L tables, K projections a table, d and d_v widths. Arrays are
// C-contiguous; whatever counts elements has 64 bits. Acc is the type to compute in: float for
// half precision and float, double for double.

constexpr int COUNT_BITS = 31;  // a bucket is (start << 31) | count, see index.py
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
// and a table joins K codes with multipliers, 1, 2, 4 ... or odd ones, modulo 2^64. `bad` counts
// the signatures that cannot be given.
template <typename Acc>
__global__ void signatures_of(
    const Acc *__restrict__ along,          // (n, L, K)
    const Acc *__restrict__ offsets,        // (L, K), or null for SimHash
    double width,
    const int64 *__restrict__ multipliers,  // (K,)
    int64 n, int n_tables, int n_projections,
    int64 *__restrict__ signatures,         // (n, L)
    int *bad)                               // (1,)
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
        if (!good) atomicAdd(bad, 1);
    }
}

// ------------------------------------------------------------------------------ Robin Hood map

// robin_hood.home_slot: simple tabulation, one random number for each byte of the key; the upper
// 31 of its 62 bits, as a fraction of 1, times the number of slots.
__device__ int64 home_slot(int64 key, const int64 *__restrict__ mixer, int64 n_slots) {
    int64 hashed = 0;
    for (int i = 0; i < 8; ++i) hashed ^= mixer[256 * i + ((key >> (8 * i)) & 255)];
    return ((hashed >> 31) * n_slots) >> 31;
}

// robin_hood.find_slot, but it returns the value, or -1.
__device__ int64 find_value(
    const int64 *__restrict__ slots, const int64 *__restrict__ mixer, int64 n_slots, int64 key)
{
    int64 slot = home_slot(key, mixer, n_slots);
    for (int64 displacement = 0; displacement < n_slots; ++displacement) {
        const int64 held = slots[3 * slot], value = slots[3 * slot + 1];
        if (slots[3 * slot + 2] < displacement) return -1;  // free, or nearer home than we came
        if (held == key) return value;
        slot = slot + 1 == n_slots ? 0 : slot + 1;
    }
    return -1;
}

// robin_hood.home_slot for many keys.
extern "C" __global__ void home_slots(
    const int64 *__restrict__ keys, int64 n, const int64 *__restrict__ mixer, int64 n_slots,
    int64 *__restrict__ homes)
{
    for (int64 i = thread_in_grid(); i < n; i += threads_in_grid())
        homes[i] = home_slot(keys[i], mixer, n_slots);
}

// How far from its home an entry would be in a slot.
__device__ int64 displacement_in(int64 slot, int64 home, int64 n_slots) {
    return slot < home ? slot - home + n_slots : slot - home;
}

// robin_hood.insert_one for all entries at once. Every thread carries an entry along and puts it
// down in a free slot, or in place of one that is nearer to its home (of equals: of the one that
// comes later), which it carries on. What a slot holds only ever gives way to an entry that goes
// before it, so the layout at the end is the same in whatever order the threads run (Shun &
// Blelloch 2014, "Phase-concurrent hash tables for determinism").
extern "C" __global__ void claim_slots(
    const int64 *__restrict__ homes,  // (n,), of distinct keys
    int64 n, int64 n_slots,           // n < n_slots
    int64 limit,                      // an entry that goes farther is dropped, and
    int *crowded,                     // (1,) is set: another hash function is needed
    int *owner)                       // (n_slots,), -1 where free
{
    for (int64 i = thread_in_grid(); i < n; i += threads_in_grid()) {
        int carried = (int)i;
        int64 slot = homes[i];
        while (carried >= 0) {
            const int held = *(volatile int *)(owner + slot);
            const int64 mine = displacement_in(slot, homes[carried], n_slots);
            const int64 its = held < 0 ? -1 : displacement_in(slot, homes[held], n_slots);
            if (mine > limit) {
                *crowded = 1;
                break;
            }
            if (mine > its || (mine == its && carried < held)) {
                // if another thread was faster, look at the same slot again
                if (atomicCAS(owner + slot, held, carried) != held) continue;
                carried = held;  // -1: the slot was free
            }
            slot = slot + 1 == n_slots ? 0 : slot + 1;
        }
    }
}

// The slots of a RobinHoodTable from their owners: key, value, displacement.
extern "C" __global__ void fill_slots(
    const int *__restrict__ owner, const int64 *__restrict__ homes,
    const int64 *__restrict__ keys, const int64 *__restrict__ starts,
    const int64 *__restrict__ counts, int64 n_slots,
    int64 *__restrict__ slots)  // (n_slots, 3)
{
    for (int64 slot = thread_in_grid(); slot < n_slots; slot += threads_in_grid()) {
        const int entry = owner[slot];
        slots[3 * slot] = entry < 0 ? 0 : keys[entry];
        slots[3 * slot + 1] = entry < 0 ? 0 : (starts[entry] << COUNT_BITS) | counts[entry];
        slots[3 * slot + 2] = entry < 0 ? -1 : displacement_in(slot, homes[entry], n_slots);
    }
}

// BucketIndex.counts, and where in order[t] the buckets start.
extern "C" __global__ void find_buckets(
    const int64 *__restrict__ signatures,   // (n_q, L)
    int64 n_queries, int n_tables,
    const int64 *__restrict__ slots,        // (slot_starts[L], 3)
    const int64 *__restrict__ slot_starts,  // (L + 1,)
    const int64 *__restrict__ mixer,        // (8, 256)
    int64 *__restrict__ starts, int64 *__restrict__ counts)  // (n_q, L)
{
    for (int64 i = thread_in_grid(); i < n_queries * n_tables; i += threads_in_grid()) {
        const int64 first = slot_starts[i % n_tables], last = slot_starts[i % n_tables + 1];
        const int64 value = find_value(slots + 3 * first, mixer, last - first, signatures[i]);
        starts[i] = value < 0 ? 0 : value >> COUNT_BITS;
        counts[i] = value < 0 ? 0 : value & ((1LL << COUNT_BITS) - 1);
    }
}
