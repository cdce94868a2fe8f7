// Attention in one kernel: scores never leave the chip (FlashAttention).
//
// A block of 128 threads owns a tile of queries of one head, walks over the keys and values a tile
// at a time, and keeps for each of its rows a running maximum m, a running total l and a running
// sum of weighted values o:
//
//     m' = max(m, scores)         l' = exp(m - m') l + sum w
//     w  = exp(scores - m')       o' = exp(m - m') o + w V
//
// Threads stand in a grid of 8 rows (y) by 16 columns (x); a warp is two rows of it. Thread (y, x)
//
//     owns the query rows   y, y + 8, ...    R of them, so a tile has 8 R queries
//     scores the keys       x, x + 16, ...   C of them, so a tile has 16 C keys
//     owns the columns      4 x .. 4 x + 3, the same + 64, ...   of the output
//
// so that each float4 from shared memory serves R or C products, all kept in registers. The 16
// threads of a row of the grid hold a row's scores among them, and join by exchanges in the warp.
//
// Shared memory, in floats; a row of DIM features takes DIM + 4, so that rows side by side start in
// different banks:
//
//     queries  (8 R, DIM + 4)     scaled, loaded once
//     keys     (16 C, DIM + 4)    later in each round the weights (8 R, 16 C + 4)
//     values   (16 C, DIM + 4)
//
// All in all 52 kB for DIM 64 and 101 kB for DIM 128, with R = 8. T is the type of the arrays;
// products, sums and exponentials are float. DIM is d_k or d_v, padded with zeros.

constexpr int N_THREADS = 128, ROWS = 8, COLUMNS = 16;
constexpr float LOG2E = 1.44269504f;

template <typename T>
struct alignas(4 * sizeof(T)) Four { T x[4]; };  // one load

__device__ float4 &four(float *x) { return *(float4 *)x; }
__device__ const float4 &four(const float *x) { return *(const float4 *)x; }

// Copy rows first .. first + N - 1 of an (n, d) array to shared memory (N, DIM + 4), with zeros
// where the array ends.
// Neighbours read side by side, four numbers each where these lie on a multiple of their size.
template <int N, int DIM, typename T>
__device__ void load_tile(
    const T *__restrict__ array, int64 row_step, int first, int n, int d, float scale, float *tile)
{
    constexpr int AT_ONCE = N_THREADS / (DIM / 4);  // rows
    const int column = threadIdx.x % (DIM / 4) * 4, row = threadIdx.x / (DIM / 4);
    const T *from = array + (first + row) * row_step + column;
    float *to = tile + row * (DIM + 4) + column;
    if (((size_t)array | row_step * sizeof(T) | d * sizeof(T)) % sizeof(Four<T>) == 0) {
        const int n_rows = column < d ? n - first - row : 0;  // that are there, from this one on
        #pragma unroll
        for (int t = 0; t < N; t += AT_ONCE) {
            Four<T> x = {};
            if (t < n_rows) x = *(const Four<T> *)(from + t * row_step);
            four(to + t * (DIM + 4)) = make_float4(
                scale * widen(x.x[0]), scale * widen(x.x[1]), scale * widen(x.x[2]),
                scale * widen(x.x[3]));
        }
    } else {
        #pragma unroll 1
        for (int t = 0; t < N; t += AT_ONCE)
            for (int a = 0; a < 4; ++a) {
                const bool exists = first + row + t < n && column + a < d;
                to[t * (DIM + 4) + a] = exists ? scale * widen(from[t * row_step + a]) : 0.0f;
            }
    }
}

__device__ void add_product(float4 a, float4 b, float *sum) {
    *sum += a.x * b.x;
    *sum += a.y * b.y;
    *sum += a.z * b.z;
    *sum += a.w * b.w;
}

__device__ void add_scaled(float a, float4 b, float *sum) {  // sum (4,)
    sum[0] += a * b.x;
    sum[1] += a * b.y;
    sum[2] += a * b.z;
    sum[3] += a * b.w;
}

__device__ int grid_row() { return threadIdx.x / COLUMNS; }
__device__ int grid_column() { return threadIdx.x % COLUMNS; }

// s += queries (8 R, DIM) keys' (DIM, 16 C): of each thread R x C scores.
template <int DIM, int R, int C>
__device__ void multiply_keys(const float *queries, const float *keys, float (&s)[R][C]) {
    const int x = grid_column(), y = grid_row();
    #pragma unroll 4
    for (int a = 0; a < DIM; a += 4) {
        float4 k[C];
        #pragma unroll
        for (int c = 0; c < C; ++c) k[c] = four(keys + (x + COLUMNS * c) * (DIM + 4) + a);
        #pragma unroll
        for (int r = 0; r < R; ++r) {
            const float4 q = four(queries + (y + ROWS * r) * (DIM + 4) + a);
            #pragma unroll
            for (int c = 0; c < C; ++c) add_product(q, k[c], &s[r][c]);
        }
    }
}

// The running softmax, a row at a time: s becomes weights, and what was summed before shrinks.
template <int R, int C, int G>
__device__ void soften(float (&s)[R][C], float (&m)[R], float (&l)[R], float (&o)[R][G][4]) {
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        float largest = m[r];
        #pragma unroll
        for (int c = 0; c < C; ++c) largest = fmaxf(largest, s[r][c]);
        largest = warp_max(largest, COLUMNS);
        const float shift = finite_or_zero(largest);
        const float shrink = exp2f((m[r] - shift) * LOG2E);
        m[r] = largest;
        l[r] *= shrink;
        #pragma unroll
        for (int c = 0; c < C; ++c) {
            s[r][c] = exp2f((s[r][c] - shift) * LOG2E);
            l[r] += s[r][c];
        }
        #pragma unroll
        for (int g = 0; g < G; ++g)
            #pragma unroll
            for (int a = 0; a < 4; ++a) o[r][g][a] *= shrink;
    }
}

// o += weights (8 R, 16 C) values (16 C, DIM): of each thread R x 4 G numbers.
template <int DIM, int C, int R, int G>
__device__ void add_values(const float *weights, const float *values, float (&o)[R][G][4]) {
    constexpr int KEYS = C * COLUMNS;
    const int x = grid_column(), y = grid_row();
    #pragma unroll 2
    for (int j = 0; j < KEYS; j += 4) {
        float4 v[4][G];
        #pragma unroll
        for (int a = 0; a < 4; ++a)
            #pragma unroll
            for (int g = 0; g < G; ++g)
                v[a][g] = four(values + (j + a) * (DIM + 4) + 4 * (x + COLUMNS * g));
        #pragma unroll
        for (int r = 0; r < R; ++r) {
            const float4 w = four(weights + (y + ROWS * r) * (KEYS + 4) + j);
            #pragma unroll
            for (int g = 0; g < G; ++g) {
                add_scaled(w.x, v[0][g], o[r][g]);
                add_scaled(w.y, v[1][g], o[r][g]);
                add_scaled(w.z, v[2][g], o[r][g]);
                add_scaled(w.w, v[3][g], o[r][g]);
            }
        }
    }
}

// Hide the scores of a row, of the keys j, j + 16, ..., that are in none of its n ranges.
template <int C>
__device__ void hide_unseen(const int *starts, const int *stops, int n, int j, float (&s)[C]) {
    unsigned seen = 0;
    #pragma unroll 1
    for (int k = 0; k < n; ++k) {
        const int start = starts[k], stop = stops[k];
        #pragma unroll
        for (int c = 0; c < C; ++c)
            seen |= (unsigned)(j + COLUMNS * c >= start && j + COLUMNS * c < stop) << c;
    }
    #pragma unroll
    for (int c = 0; c < C; ++c)
        if (!(seen >> c & 1)) s[c] = -infinity();
}

// The first of n ranges that ends after a key; n if there is none. They are sorted and apart.
__device__ int first_open(const int *stops, int n, int key) {
    int k = 0;
    while (k < n && stops[k] <= key) ++k;
    return k;
}

// Where few queries face many keys, n_parts blocks share a tile of queries: each takes keys_a_part
// keys and leaves o, m and l in `parts`, for the kernel `merge`.
// With RANGES a rule says what queries see: of each query some ranges of keys, sorted and apart, all
// starts first and then all stops; and the same of each tile of queries, what at least one of them
// sees, and what all of them see. Then tiles of keys that no query sees are skipped, and only in
// those that some see in part are keys hidden.
template <typename T, int DIM, int R, int C, bool RANGES = false>
__global__ void __launch_bounds__(N_THREADS, DIM == 64 && !RANGES ? 3 : 2) attend(
    const T *__restrict__ query,     // (h, n_q, d_k)
    const T *__restrict__ key,       // (h, n_k, d_k)
    const T *__restrict__ value,     // (h, n_k, d_v)
    const bool *__restrict__ mask,   // (h, n_q, n_k), or null
    const T *__restrict__ bias,      // (h, n_q, n_k), or null
    const Layout *__restrict__ layout, const Start *__restrict__ starts,
    int n_heads, int n_q, int n_k, int d_k, int d_v, float scale, int is_causal,
    int n_parts, int keys_a_part,
    const int *__restrict__ by_row,  // (2, n_sequences, n_q, n_row), not read without RANGES
    const int *__restrict__ by_any,  // (2, n_sequences, tiles of queries, n_any)
    const int *__restrict__ by_all,  // (2, n_sequences, tiles of queries, n_all)
    int n_sequences, int n_row, int n_any, int n_all,
    T *__restrict__ output,          // (h, n_q, d_v) result if n_parts is 1
    float *__restrict__ parts,       // (n_parts, h, n_q, d_v) o otherwise
    float *__restrict__ ends)        // (n_parts, h, n_q, 2)   m and l
{
    constexpr int QUERIES = R * ROWS, KEYS = C * COLUMNS, G = DIM / (4 * COLUMNS);
    extern __shared__ float4 memory[];
    float *queries = (float *)memory;                // (QUERIES, DIM + 4)
    float *keys = queries + QUERIES * (DIM + 4);     // (KEYS, DIM + 4)
    float *values = keys + KEYS * (DIM + 4);         // (KEYS, DIM + 4)
    float *weights = keys;                           // (QUERIES, KEYS + 4)

    const int x = grid_column(), y = grid_row();
    const int n_tiles = (n_q + QUERIES - 1) / QUERIES;
    // the last queries first: with a causal mask they have the most to do
    const int first_query = (n_tiles - 1 - blockIdx.x % n_tiles) * QUERIES;
    const int part = blockIdx.x / n_tiles % n_parts;
    const int head = blockIdx.x / n_tiles / n_parts;
    const Start start = starts[head];
    if (mask) mask += start.mask;
    if (bias) bias += start.bias;
    load_tile<QUERIES, DIM>(
        query + start.query, layout->query_row, first_query, n_q, d_k, scale, queries);

    float o[R][G][4] = {}, m[R], l[R];  // l: of this thread's keys only, until the end
    #pragma unroll
    for (int r = 0; r < R; ++r) m[r] = -infinity(), l[r] = 0;

    // the keys of this part, up to the last one that the last query of the tile may see
    const int seen_by_first = is_causal ? first_query + 1 + (n_k - n_q) : n_k;
    const int seen_by_last = min(seen_by_first + QUERIES - 1, n_k);
    const int begin = part * keys_a_part, end = min(begin + keys_a_part, seen_by_last);

    if (RANGES) {
        const int64 tile = start.sequence * n_tiles + first_query / QUERIES;
        by_row += start.sequence * n_q * n_row;
        by_any += tile * n_any;
        by_all += tile * n_all;
    }
    const int64 to_stops = (int64)n_sequences * n_tiles;  // from starts, in tiles of queries

    for (int first = begin; first < end; first += KEYS) {
        bool has_hidden = false;
        if (RANGES) {
            const int seen = first_open(by_any + to_stops * n_any, n_any, first);
            if (seen == n_any) break;
            if (by_any[seen] >= first + KEYS) {  // no query sees a key of this tile, nor of these
                first += (by_any[seen] - first) / KEYS * KEYS;
                if (first >= end) break;
            }
            const int whole = first_open(by_all + to_stops * n_all, n_all, first);
            has_hidden = whole == n_all || by_all[whole] > first
                         || by_all[to_stops * n_all + whole] < min(first + KEYS, n_k);
        }
        __syncthreads();  // the tiles of the last round have been read
        load_tile<KEYS, DIM>(key + start.key, layout->key_row, first, n_k, d_k, 1.0f, keys);
        load_tile<KEYS, DIM>(value + start.value, layout->value_row, first, n_k, d_v, 1.0f, values);
        __syncthreads();  // and those of this round are complete

        float s[R][C] = {};  // scores, then weights (QUERIES, KEYS)
        multiply_keys<DIM>(queries, keys, s);
        // bias and masks; rows beyond the last query are computed too, but never read
        const int i = first_query + y, j = first + x;
        if (bias) {
            #pragma unroll
            for (int c = 0; c < C; ++c) {
                const T *b = bias + i * layout->bias_row + (j + COLUMNS * c) * layout->bias_column;
                #pragma unroll
                for (int r = 0; r < R; ++r, b += ROWS * layout->bias_row)
                    if (i + ROWS * r < n_q && j + COLUMNS * c < n_k) s[r][c] += widen(*b);
            }
        }
        if (mask) {
            #pragma unroll
            for (int c = 0; c < C; ++c) {
                const bool *b = mask + i * layout->mask_row
                                + (j + COLUMNS * c) * layout->mask_column;
                #pragma unroll
                for (int r = 0; r < R; ++r, b += ROWS * layout->mask_row)
                    if (i + ROWS * r < n_q && j + COLUMNS * c < n_k && !*b) s[r][c] = -infinity();
            }
        }
        if (RANGES && has_hidden) {
            #pragma unroll
            for (int r = 0; r < R; ++r) {
                const int *row = by_row + (int64)(i + ROWS * r) * n_row;
                const int *stops = row + (int64)n_sequences * n_q * n_row;
                if (i + ROWS * r < n_q) hide_unseen(row, stops, n_row, j, s[r]);
            }
        }
        if (first + KEYS > n_k || first + KEYS > seen_by_first) {
            #pragma unroll
            for (int r = 0; r < R; ++r)
                #pragma unroll
                for (int c = 0; c < C; ++c) {
                    const bool is_future = is_causal && j + COLUMNS * c > i + ROWS * r + n_k - n_q;
                    if (is_future || j + COLUMNS * c >= n_k) s[r][c] = -infinity();
                }
        }

        soften(s, m, l, o);

        __syncthreads();  // all have read the keys, where the weights now go
        #pragma unroll
        for (int r = 0; r < R; ++r)
            #pragma unroll
            for (int c = 0; c < C; ++c)
                weights[(y + ROWS * r) * (KEYS + 4) + x + COLUMNS * c] = s[r][c];
        __syncwarp();  // a row's weights are written and read by one warp
        add_values<DIM, C>(weights, values, o);
    }

    #pragma unroll
    for (int r = 0; r < R; ++r) {
        const int i = first_query + y + ROWS * r;
        const float total = warp_sum(l[r], COLUMNS);
        if (i >= n_q) continue;
        const int64 row = (int64)head * n_q + i;
        const int64 row_of_part = (int64)part * n_heads * n_q + row;
        #pragma unroll
        for (int g = 0; g < G; ++g)
            #pragma unroll
            for (int a = 0; a < 4; ++a) {
                const int column = 4 * (x + COLUMNS * g) + a;
                if (column >= d_v) continue;
                if (n_parts == 1) narrow(mean(o[r][g][a], total), &output[row * d_v + column]);
                else parts[row_of_part * d_v + column] = o[r][g][a];
            }
        if (n_parts > 1 && x == 0) ends[2 * row_of_part] = m[r], ends[2 * row_of_part + 1] = total;
    }
}

// The parts of a row join as the tiles did: one thread a number of the output, always in the order
// of the keys, so the result has the same bits every time.
template <typename T>
__global__ void merge(
    const float *__restrict__ parts,  // (n_parts, n_rows, d_v)
    const float *__restrict__ ends,   // (n_parts, n_rows, 2)
    int n_parts, int64 n_rows, int d_v,
    T *__restrict__ output)           // (n_rows, d_v) result
{
    const int64 place = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= n_rows * d_v) return;
    const int64 row = place / d_v;
    float largest = -infinity(), total = 0, sum = 0;
    for (int p = 0; p < n_parts; ++p) largest = fmaxf(largest, ends[2 * (p * n_rows + row)]);
    const float shift = finite_or_zero(largest);
    for (int p = 0; p < n_parts; ++p) {
        const float share = exp2f((ends[2 * (p * n_rows + row)] - shift) * LOG2E);
        total += share * ends[2 * (p * n_rows + row) + 1];
        sum += share * parts[p * n_rows * d_v + place];
    }
    narrow(mean(sum, total), &output[place]);
}
