// Attention in three kernels, one for each step of the formula softmax(scale QK' + B) V.
//
// The n_q x n_k scores of every head go to memory and come back twice. Letters: h heads, whatever
// axes they came in, n_q queries, n_k keys, widths d_k and d_v. T is the type of the arrays; the
// scores and all sums are float.

__device__ int64 thread_in_grid() { return (int64)blockIdx.x * blockDim.x + threadIdx.x; }

// One thread a score. The 32 threads of a warp take 32 keys in a row, whose numbers lie d_k apart:
// each load of the warp touches 32 far places, and every query is read n_k times.
template <typename T>
__global__ void scores(
    const T *__restrict__ query,     // (h, n_q, d_k)
    const T *__restrict__ key,       // (h, n_k, d_k)
    const bool *__restrict__ mask,   // (h, n_q, n_k), or null
    const T *__restrict__ bias,      // (h, n_q, n_k), or null
    const Layout *__restrict__ layout, const Start *__restrict__ starts,
    int n_heads, int n_q, int n_k, int d_k, float scale, int is_causal,
    float *__restrict__ score)       // (h, n_q, n_k) result
{
    const int64 place = thread_in_grid();
    if (place >= (int64)n_heads * n_q * n_k) return;
    const int j = place % n_k, i = place / n_k % n_q;
    const Start start = starts[place / n_k / n_q];
    const T *q = query + start.query + i * layout->query_row;  // (d_k,)
    const T *k = key + start.key + j * layout->key_row;        // (d_k,)
    float sum = 0;
    for (int a = 0; a < d_k; ++a) sum += scale * widen(q[a]) * widen(k[a]);
    if (bias)
        sum += widen(bias[start.bias + i * layout->bias_row + j * layout->bias_column]);
    const bool *seen = mask ? mask + start.mask : nullptr;
    score[place] = may_see(i, j, n_q, n_k, is_causal, seen, layout) ? sum : -infinity();
}

// One warp a row: each lane takes every 32nd score, then the lanes join what they found.
extern "C" __global__ void softmax_rows(
    int64 n_rows, int n_k,
    float *__restrict__ score)       // (n_rows, n_k), becomes the weights
{
    const int64 row = thread_in_grid() / WARP;
    if (row >= n_rows) return;
    const int lane = threadIdx.x % WARP;
    float *x = score + row * n_k;    // (n_k,)
    float largest = -infinity();
    for (int j = lane; j < n_k; j += WARP) largest = fmaxf(largest, x[j]);
    largest = finite_or_zero(warp_max(largest));
    float total = 0;
    for (int j = lane; j < n_k; j += WARP) total += expf(x[j] - largest);
    total = warp_sum(total);
    for (int j = lane; j < n_k; j += WARP) x[j] = mean(expf(x[j] - largest), total);
}

// One thread a number of the output: neighbours take the next columns, which lie side by side.
template <typename T>
__global__ void times_values(
    const float *__restrict__ weights,  // (h, n_q, n_k)
    const T *__restrict__ value,        // (h, n_k, d_v)
    const Layout *__restrict__ layout, const Start *__restrict__ starts,
    int n_heads, int n_q, int n_k, int d_v,
    T *__restrict__ output)             // (h, n_q, d_v) result
{
    const int64 place = thread_in_grid();
    if (place >= (int64)n_heads * n_q * d_v) return;
    const int64 row = place / d_v;      // of the weights
    const T *v = value + starts[row / n_q].value + place % d_v;
    float sum = 0;
    for (int j = 0; j < n_k; ++j) sum += weights[row * n_k + j] * widen(v[j * layout->value_row]);
    narrow(sum, &output[place]);
}
