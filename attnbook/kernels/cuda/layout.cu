// Where the arrays of attention lie, for tiled.cu; arrays.py fills these tables in.
//
// Every number is a count of elements. A step of 0 reads the same element again: a mask of shape
// (n_k,) has row step 0, and heads that share a key have the same start. So nothing is copied to
// be broadcast. Features lie side by side in every array.

struct Layout {                                    // one for all heads
    int64 query_row, key_row, value_row;           // from one row to the next
    int64 mask_row, mask_column;                   // from one query, from one key to the next
    int64 bias_row, bias_column;
};

// One for each head: where its arrays begin, and which of the sequences of ranges is its own.
struct Start { int64 query, key, value, mask, bias, sequence; };

// Whether query i may see key j. The last query stands at the last key.
__device__ bool may_see(
    int i, int j, int n_q, int n_k, bool is_causal, const bool *mask, const Layout *layout)
{
    if (is_causal && j > i + (int64)n_k - n_q) return false;
    return mask == nullptr || mask[i * layout->mask_row + j * layout->mask_column];
}

// A row's largest score is taken away before exp, so that exp cannot overflow; where no key may be
// seen it is -inf, and 0 is taken, since -inf - -inf is NaN.
__device__ float finite_or_zero(float largest) { return largest == -infinity() ? 0.0f : largest; }

__device__ float mean(float weighted, float total) { return total == 0 ? 0.0f : weighted / total; }
