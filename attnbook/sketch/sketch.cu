// Sketch attention on a GPU: each query attends to what its buckets hold.
//
// This file stands behind index.cu, which says how to read both. T is the type of the vectors,
// Acc the type to compute in.

constexpr int AT_ONCE = 4;  // rows whose loads are in flight together

enum Estimator { UNION, DUPLICATES, IMPORTANCE };  // estimators.py
enum Chance { UNKNOWN, OF_ANGLE, OF_DISTANCE };    // no hash is known, SimHash, StableHash

// What a block keeps in shared memory; cuda_query.shared_numbers counts the same. Each number
// takes 8 bytes there, so that the parts can lie side by side whatever Acc is.
template <typename Acc>
struct Shared {
    int64 *signature, *start, *size, *until;              // (L,) of the query, see find_buckets_of
    Acc *x;                                               // (d,) the query
    int64 *rows;                                          // (n_warps, 32) rows of this turn
    Acc *weights;                                         // (n_warps, 32) their weights
    Acc *sums;                                            // (n_warps, d_v) weighted sums of values
    int64 *count, *best, *place;                          // (n_warps,) results of each warp
    Acc *top, *total, *weight, *expected;                 // (n_warps,)

    __device__ Shared(int64 *free, int n_tables, int d, int d_v, int n_warps) {
        const auto take = [&free](int64 n) { int64 *part = free; free += n; return part; };
        signature = take(n_tables), start = take(n_tables), size = take(n_tables);
        until = take(n_tables);
        rows = take(WARP * n_warps), count = take(n_warps), best = take(n_warps);
        place = take(n_warps), x = (Acc *)take(d), weights = (Acc *)take(WARP * n_warps);
        sums = (Acc *)take((int64)d_v * n_warps), top = (Acc *)take(n_warps);
        total = (Acc *)take(n_warps), weight = (Acc *)take(n_warps);
        expected = (Acc *)take(n_warps);
    }
};

// The products x·row of AT_ONCE rows, in every lane; the lanes share the d features out. In
// `other` what a chance needs besides: |row|^2 or |x - row|^2.
template <Chance chance, typename T, typename Acc>
__device__ void products(const Acc *x, const T *const *rows, int d, Acc *along, Acc *other) {
    for (int j = 0; j < AT_ONCE; ++j) along[j] = other[j] = 0;
    for (int i = threadIdx.x % WARP; i < d; i += WARP)
        for (int j = 0; j < AT_ONCE; ++j) {
            const Acc y = widen(rows[j][i]);
            along[j] += x[i] * y;
            if (chance == OF_ANGLE) other[j] += y * y;
            if (chance == OF_DISTANCE) other[j] += (x[i] - y) * (x[i] - y);
        }
    for (int j = 0; j < AT_ONCE; ++j) {
        along[j] = warp_sum(along[j]);
        if (chance != UNKNOWN) other[j] = warp_sum(other[j]);
    }
}

// SimHash.retrieval_probability and StableHash.retrieval_probability: the chance P that a key is
// found in at least one of L tables. Never below 1e-30, so that exp(score) / P stays finite.
template <typename Acc>
__device__ Acc retrieval_probability(
    Chance chance, Acc along, Acc other, Acc query_length, Acc width, int n_projections,
    int n_tables)
{
    Acc p = 1;
    if (chance == OF_ANGLE) {
        const Acc lengths = query_length * sqrt(other);
        Acc cosine = lengths == 0 ? 0 : along / lengths;
        cosine = cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
        p = 1 - acos(cosine) / (Acc)3.14159265358979323846;
    } else if (sqrt(other) >= (Acc)1e-12 * width) {
        const Acc t = width / sqrt(other);
        p = erf(t * (Acc)0.70710678118654752440)
            + (Acc)0.79788456080286535588 * expm1(-t * t / 2) / t;  // sqrt(1/2), sqrt(2/pi)
    }
    const Acc chance_of_one = pow(p > 0 ? p : 0, (Acc)n_projections);
    const Acc at_least_once = -expm1(n_tables * log1p(-chance_of_one));
    return at_least_once > (Acc)1e-30 ? at_least_once : (Acc)1e-30;
}

// Adds the codes of the query, multiplied, to its signatures, which are 0 before; returns whether
// it can be hashed. A warp takes a share of the projections, and then a lane each of their codes.
// The sums are modulo 2^64, so their order does not matter.
template <typename Acc>
__device__ int hash_query(
    Shared<Acc> &shared, const Acc *__restrict__ directions, const Acc *__restrict__ offsets,
    const int64 *__restrict__ multipliers, Acc width, int n_projections, int n_codes, int d)
{
    int good = 1;
    const int warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const int turns = (n_codes - 1) / (AT_ONCE * n_warps) + 1;
    const int share = AT_ONCE * turns < WARP ? AT_ONCE * turns : WARP;
    for (int p = share * warp; p < n_codes; p += share * n_warps) {
        const int n_mine = n_codes - p < share ? n_codes - p : share;
        Acc mine = 0;
        for (int c = 0; c < n_mine; c += AT_ONCE) {
            const Acc *rows[AT_ONCE];
            Acc along[AT_ONCE], other[AT_ONCE];
            for (int j = 0; j < AT_ONCE; ++j)
                rows[j] = directions + (int64)(c + j < n_mine ? p + c + j : p) * d;
            products<UNKNOWN>(shared.x, rows, d, along, other);
            for (int j = 0; j < AT_ONCE; ++j)
                if (lane == c + j) mine = along[j];
        }
        if (lane < n_mine) {
            const int i = p + lane;
            const uint64 code = code_of(mine, offsets ? offsets + i : nullptr, width, &good);
            uint64 *signature = (uint64 *)shared.signature + i / n_projections;
            atomicAdd(signature, code * (uint64)multipliers[i % n_projections]);
        }
    }
    return good;
}

// BucketIndex.lookup for one query, a thread a table: where its buckets start, how many rows are in
// each and, counted through all tables, up to where.
template <typename Acc>
__device__ void find_buckets_of(Shared<Acc> &shared, const Tables &tables, int n_tables)
{
    for (int t = threadIdx.x; t < n_tables; t += blockDim.x) {
        const Bucket bucket = find_bucket(tables, shared.signature[t], t);
        shared.start[t] = bucket.start;
        shared.size[t] = bucket.count;
    }
    __syncthreads();
    for (int t = threadIdx.x; t < n_tables; t += blockDim.x) {
        int64 until = 0;
        for (int s = 0; s <= t; ++s) until += shared.size[s];
        shared.until[t] = until;
    }
    __syncthreads();
}

// The number of tables from `first` to `last` whose bucket for this query has the row. Signatures
// tell, so no list of what was seen is kept.
template <typename Acc>
__device__ int times_found(
    const Shared<Acc> &shared, const int64 *__restrict__ key_signatures, int64 row, int first,
    int last, int n_tables)
{
    int times = 0;
#pragma unroll 4
    for (int t = first; t < last; ++t)
        times += key_signatures[row * n_tables + t] == shared.signature[t];
    return times;
}

// The row at a place, counted through all buckets; -1 if an earlier table
// has it too, or it does not count. For `times` see estimators.duplicates; null if not needed.
template <typename Acc>
__device__ int64 row_at(
    const Shared<Acc> &shared, int64 place, const Tables &tables,
    const int64 *__restrict__ key_signatures, int n_tables, int64 limit, int *times)
{
    int t = 0, end = n_tables - 1;  // to be the first table with until > place
    while (t < end) {
        const int middle = (t + end) / 2;
        if (shared.until[middle] > place) end = middle; else t = middle + 1;
    }
    const int64 in_bucket = place - (shared.until[t] - shared.size[t]);
    const int64 row = row_of(tables, shared.start[t] + in_bucket);
    if (row >= limit) return -1;
    if (times_found(shared, key_signatures, row, 0, t, n_tables) > 0) return -1;
    if (times) *times = 1 + times_found(shared, key_signatures, row, t + 1, n_tables, n_tables);
    return row;
}

// reference_query.near for one query a block, with the estimators union, duplicates and importance: hash
// it (unless it comes with signatures), find its buckets, and take one running softmax over the
// distinct rows in them. The warps of the block, 16 at most, share the rows out, 32 a turn, and
// join their sums at the end. A query that finds nothing gets an output of 0 and -inf; for one that
// has no hash, as it holds NaN, the output is NaN and `bad` is set to 1.
template <typename T, typename Acc>
__global__ void __launch_bounds__(512, 1) attend(
    const T *__restrict__ query,               // (n_q, d)
    const T *__restrict__ key,                 // (n, d)
    const T *__restrict__ value,               // (n, d_v)
    int d, int d_v, double scale,
    const int64 *__restrict__ signatures,      // (n_q, L) of the queries; null: hash here, with
    const Acc *__restrict__ directions,        //   (L, K, d)
    const Acc *__restrict__ offsets,           //   (L, K), null for SimHash
    const int64 *__restrict__ multipliers,     //   (K,)
    double width, int n_projections,
    const int64 *__restrict__ key_signatures,  // (n, L)
    const int64 *__restrict__ starts, const uint64 *__restrict__ entries, int bits,
    int64 salt,                                // these four make Tables
    int n_tables,
    const int64 *__restrict__ before,          // (n_q,) only rows below it; or null
    int estimator, int chance,
    int *bad,                                  // (1,) in the memory of the host; if it hashes here
    T *__restrict__ output,                    // (n_q, d_v)
    Acc *__restrict__ mass,                    // (n_q,) log of the sum of exp(score)
    Acc *__restrict__ largest,                 // (n_q,) the largest score
    Acc *__restrict__ expected,                // (n_q,) log of the sum of exp(score) / P
    int64 *__restrict__ best,                  // (n_q,) the row of the largest score, or -1
    int64 *__restrict__ count)                 // (n_q,) how many rows were counted
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    const int64 q = blockIdx.x;
    const Tables tables = {starts, entries, bits, salt};
    extern __shared__ int64 memory[];
    Shared<Acc> shared(memory, n_tables, d, d_v, n_warps);
    int64 *rows = shared.rows + WARP * warp;
    Acc *weights = shared.weights + WARP * warp, *sums = shared.sums + (int64)d_v * warp;

    for (int i = threadIdx.x; i < d; i += blockDim.x) shared.x[i] = widen(query[q * d + i]);
    for (int i = lane; i < d_v; i += WARP) sums[i] = 0;
    for (int t = threadIdx.x; t < n_tables; t += blockDim.x)
        shared.signature[t] = signatures ? signatures[q * n_tables + t] : 0;
    __syncthreads();

    // 1. Signatures.
    const int good = signatures ? 1 : hash_query(
        shared, directions, offsets, multipliers, (Acc)width, n_projections,
        n_tables * n_projections, d);
    if (!__syncthreads_and(good)) {  // the same in every thread
        for (int i = threadIdx.x; i < d_v; i += blockDim.x)
            narrow((Acc)not_a_number(), output + q * d_v + i);
        if (threadIdx.x == 0) *bad = 1;
        return;
    }

    // 2. Buckets.
    find_buckets_of(shared, tables, n_tables);

    // 3. Running softmax over the rows of all buckets.
    Acc query_length = 0;
    if (chance == OF_ANGLE) {
        for (int i = lane; i < d; i += WARP) query_length += shared.x[i] * shared.x[i];
        query_length = sqrt(warp_sum(query_length));
    }
    const int64 limit = before ? before[q] : 1LL << 62;
    const int64 n_places = shared.until[n_tables - 1];
    Acc top = -infinity(), my_top = -infinity();  // the largest score of the warp and of the lane
    Acc my_total = 0, my_weight = 0, my_expected = 0;  // the lane's sums, divided by exp(top)
    int64 my_best = -1, my_place = 1LL << 62, my_count = 0;
    for (int64 turn = (int64)WARP * warp; turn < n_places; turn += (int64)WARP * n_warps) {
        // Rows: each lane takes one, and those that count move together.
        int times = 1;
        const int64 row = turn + lane >= n_places ? -1 : row_at(
            shared, turn + lane, tables, key_signatures, n_tables, limit,
            estimator == DUPLICATES ? &times : nullptr);
        const unsigned fresh = __ballot_sync(ALL, row >= 0);
        const int n_fresh = __popc(fresh);
        if (n_fresh == 0) continue;  // the same in every lane
        if (row >= 0) {
            const int to = __popc(fresh & ((1u << lane) - 1));
            rows[to] = row;
            weights[to] = times;
        }
        __syncwarp();

        // Scores: lane c keeps that of rows[c], and the chance that it would be found.
        Acc product = 0, square = 0;
        for (int c = 0; c < n_fresh; c += AT_ONCE) {
            const T *keys[AT_ONCE];
            Acc along[AT_ONCE], other[AT_ONCE];
            for (int j = 0; j < AT_ONCE; ++j) keys[j] = key + rows[c + j < n_fresh ? c + j : c] * d;
            if (chance == OF_ANGLE) products<OF_ANGLE>(shared.x, keys, d, along, other);
            else if (chance == OF_DISTANCE) products<OF_DISTANCE>(shared.x, keys, d, along, other);
            else products<UNKNOWN>(shared.x, keys, d, along, other);
            for (int j = 0; j < AT_ONCE; ++j)
                if (lane == c + j) {
                    product = along[j];
                    square = other[j];
                }
        }
        Acc score = product * (Acc)scale, p = 1;
        const bool counts = lane < n_fresh;
        if (!counts) score = -infinity();
        if (counts && chance != UNKNOWN)
            p = retrieval_probability(
                (Chance)chance, product, square, query_length, (Acc)width, n_projections,
                n_tables);
        if (score > my_top) {  // the first of equals
            my_top = score;
            my_best = rows[lane];
            my_place = turn + lane;
        }
        my_count += counts;

        // Weights, relative to the largest score so far.
        const Acc new_top = warp_max(score > top ? score : top);
        const Acc base = new_top == -infinity() ? 0 : new_top;  // -inf - -inf would be NaN
        const Acc shrink = exp(top - base);
        const Acc part = counts ? exp(score - base) : (Acc)0;
        Acc weight = part;
        if (estimator == DUPLICATES && counts) weight *= weights[lane];
        if (estimator == IMPORTANCE) weight /= p;
        my_total = my_total * shrink + part;
        my_weight = my_weight * shrink + weight;
        my_expected = my_expected * shrink + part / p;
        top = new_top;
        weights[lane] = weight;
        __syncwarp();
        for (int i = lane; i < d_v; i += WARP) {
            Acc sum = sums[i] * shrink;
#pragma unroll 4
            for (int c = 0; c < n_fresh; ++c) sum += weights[c] * widen(value[rows[c] * d_v + i]);
            sums[i] = sum;
        }
        __syncwarp();  // before the next turn overwrites rows and weights
    }

    // 4. Join the lanes, then the warps.
    const bool leads = my_top == top && my_best >= 0;
    const int64 first = -warp_max(leads ? -my_place : -(1LL << 62));
    const int64 winner = warp_max(leads && my_place == first ? my_best : -1LL);
    my_total = warp_sum(my_total), my_weight = warp_sum(my_weight);
    my_expected = warp_sum(my_expected), my_count = warp_sum(my_count);
    if (lane == 0) {
        shared.top[warp] = top, shared.total[warp] = my_total, shared.weight[warp] = my_weight;
        shared.expected[warp] = my_expected, shared.count[warp] = my_count;
        shared.best[warp] = winner, shared.place[warp] = first;
    }
    __syncthreads();
    int leader = 0;
    for (int w = 1; w < n_warps; ++w)
        if (shared.top[w] > shared.top[leader]
            || (shared.top[w] == shared.top[leader] && shared.place[w] < shared.place[leader]))
            leader = w;
    const Acc base = shared.top[leader] == -infinity() ? 0 : shared.top[leader];
    Acc total = 0, weight = 0, by_chance = 0;
    int64 n_counted = 0;
    for (int w = 0; w < n_warps; ++w) {
        const Acc shrink = exp(shared.top[w] - base);
        total += shared.total[w] * shrink, weight += shared.weight[w] * shrink;
        by_chance += shared.expected[w] * shrink, n_counted += shared.count[w];
    }
    for (int i = threadIdx.x; i < d_v; i += blockDim.x) {
        Acc sum = 0;
        for (int w = 0; w < n_warps; ++w)
            sum += shared.sums[(int64)w * d_v + i] * exp(shared.top[w] - base);
        narrow(weight == 0 ? (Acc)0 : sum / weight, output + q * d_v + i);
    }
    if (threadIdx.x == 0) {
        mass[q] = base + log(total);  // log(0) is -inf
        expected[q] = base + log(by_chance);
        largest[q] = shared.top[leader];
        best[q] = shared.best[leader];
        count[q] = n_counted;
    }
}
