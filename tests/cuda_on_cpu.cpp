// Runs the kernels of the package's .cu files on the CPU, for tests/cupy_on_cpu.py.
//
// Every CUDA thread of a block is a fiber with a stack of its own. It runs until it comes to a
// barrier, a warp's exchange or an atomic operation; then another one runs, in random order. In
// half of the blocks one warp runs as far as it can before the next one does. So a missing barrier
// shows as a wrong number, and a lane that stays away from one as an error.
//
// kernels.cu holds the source, names.inc a KERNEL(name) for each kernel to be launched, and SHARED
// is the type that the source gives to shared memory.
//
//     c++ -std=c++17 -shared -fPIC -DKERNELS='"kernels.cu"' -DNAMES='"names.inc"' -DSHARED=int64 \
//         cuda_on_cpu.cpp

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ucontext.h>

#define __global__
#define __device__
#define __shared__
#define __launch_bounds__(n, m)

struct Index {
    unsigned x = 1, y = 1, z = 1;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) float4 {
    float x, y, z, w;
};

[[maybe_unused]] static float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

// ------------------------------------------------------------------------------------- fibers

enum State { READY, AT_WARP, AT_BLOCK, DONE };

struct Fiber {
    State state = READY;
    int line = 0;  // of the barrier it waits at
    bool begun = false;
    ucontext_t first;
    jmp_buf at;
    std::vector<char> stack;
};

static std::vector<Fiber> fibers;
static unsigned current;
static jmp_buf scheduler;
static std::vector<int64_t> exchanged, voted;
static void (*body)();

static void run_body() {
    body();
    fibers[current].state = DONE;
    _longjmp(scheduler, 1);
}

static void leave(State state, int line) {
    Fiber &fiber = fibers[current];
    fiber.state = state;
    fiber.line = line;
    if (_setjmp(fiber.at) == 0) _longjmp(scheduler, 1);
}

static void enter(unsigned thread) {
    current = thread;
    threadIdx.x = thread;
    Fiber &fiber = fibers[thread];
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.first);
}

// Lets the fibers from `first` to `last` go on if all of them wait at one and the same barrier.
static bool release(unsigned first, unsigned last, State state) {
    for (unsigned i = first; i < last; ++i)
        if (fibers[i].state != state || fibers[i].line != fibers[first].line) return false;
    for (unsigned i = first; i < last; ++i) fibers[i].state = READY;
    return true;
}

static const char *run_block(std::mt19937 &random) {
    const unsigned n = blockDim.x;
    std::vector<unsigned> turns(n);
    std::iota(turns.begin(), turns.end(), 0u);
    for (unsigned i = 0; i < n; ++i) {
        Fiber &fiber = fibers[i];
        fiber.state = READY;
        fiber.begun = false;
        fiber.stack.resize(1 << 16);
        getcontext(&fiber.first);
        fiber.first.uc_stack.ss_sp = fiber.stack.data();
        fiber.first.uc_stack.ss_size = fiber.stack.size();
        fiber.first.uc_link = nullptr;
        makecontext(&fiber.first, run_body, 0);
    }
    const unsigned n_warps = (n + 31) / 32, first_warp = random() % n_warps;
    const bool one_by_one = random() % 2;
    for (;;) {
        bool moved = false, all_done = true;
        unsigned warp = n_warps;  // the only one that runs, or none
        for (unsigned w = 0; one_by_one && w < n_warps && warp == n_warps; ++w)
            for (unsigned i = 0; i < n; ++i)
                if (i / 32 == (first_warp + w) % n_warps && fibers[i].state == READY) warp = i / 32;
        std::shuffle(turns.begin(), turns.end(), random);
        for (unsigned i : turns)
            if (fibers[i].state == READY && (warp == n_warps || i / 32 == warp)) {
                enter(i);
                moved = true;
            }
        for (unsigned first = 0; first < n; first += 32)
            moved |= release(first, std::min(first + 32, n), AT_WARP);
        moved |= release(0, n, AT_BLOCK);
        for (const Fiber &fiber : fibers) all_done &= fiber.state == DONE;
        if (all_done) return nullptr;
        if (!moved) return "some threads wait at a barrier that others do not come to";
    }
}

// --------------------------------------------------------------------- what CUDA has built in

static void check_mask(unsigned mask) {
    if (mask != 0xffffffffu) std::abort();  // the fibers know whole warps only
}

template <typename F>
static auto in_step(State state, int line, int64_t mine, F read) {
    std::vector<int64_t> &shown = state == AT_WARP ? exchanged : voted;
    shown[current] = mine;
    leave(state, line);
    auto result = read(shown, state == AT_WARP ? current / 32 * 32 : 0);
    leave(state, -line);
    return result;
}

template <typename X>
static X shuffled(unsigned mask, X x, int step, int line) {
    check_mask(mask);
    int64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    const auto read = [=](auto &shown, unsigned) { return shown[current ^ step]; };
    bits = in_step(AT_WARP, line, bits, read);
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static unsigned ballot(unsigned mask, bool yes, int line) {
    check_mask(mask);
    return in_step(AT_WARP, line, yes, [](auto &shown, unsigned first) {
        unsigned set = 0;
        for (unsigned i = 0; i < 32; ++i) set |= (unsigned)shown[first + i] << i;
        return set;
    });
}

static int all_agree(int yes, int line) {
    return in_step(AT_BLOCK, line, yes != 0, [](auto &shown, unsigned) {
        int all = 1;
        for (unsigned i = 0; i < blockDim.x; ++i) all &= (int)shown[i];
        return all;
    });
}

#define __syncwarp() leave(AT_WARP, __LINE__)
#define __syncthreads() leave(AT_BLOCK, __LINE__)
#define __syncthreads_and(yes) all_agree(yes, __LINE__)
#define __shfl_xor_sync(mask, x, step) shuffled(mask, x, step, __LINE__)
#define __ballot_sync(mask, yes) ballot(mask, yes, __LINE__)
#define __popc __builtin_popcount
using std::min;

static unsigned long long atomicAdd(unsigned long long *place, unsigned long long more) {
    leave(READY, 0);  // let others come first
    const unsigned long long held = *place;
    *place += more;
    return held;
}

static float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

#include KERNELS

alignas(16) SHARED memory[(1 << 18) / sizeof(SHARED)];  // a block's shared memory

// ------------------------------------------ half precision, which the GPU has instructions for

float widen(float16 x) {
    const int exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
    const float sign = x.bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign * std::ldexp((float)(exponent ? mantissa + 1024 : mantissa),
                             (exponent ? exponent : 1) - 25);
}

void narrow(float x, float16 *y) {
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (std::isnan(x)) {
        y->bits = 0x7e00;
    } else if (size >= 65520.0f) {
        y->bits = sign | 0x7c00;
    } else {
        // a multiple of the distance to the next number; nearbyint rounds halves to even
        int exponent = size < std::ldexp(1.0f, -14) ? -14 : std::ilogb(size);
        int steps = (int)std::nearbyint(std::ldexp(size, 10 - exponent));
        y->bits = sign | (unsigned short)(steps + ((exponent + 14) << 10));
    }
}

// ------------------------------------------------------------------------------------- launch

static void **arguments;
static bool misaligned = false;

// Called where a number is read or written off a multiple of its size, since the compiler is asked
// to check that; a GPU would stop there.
extern "C" void __ubsan_handle_type_mismatch_v1(void *, void *) { misaligned = true; }

template <auto kernel, typename... A, std::size_t... i>
static void call(void (*)(A...), std::index_sequence<i...>) {
    kernel(*(A *)arguments[i]...);
}

template <typename... A>
constexpr std::size_t count(void (*)(A...)) {
    return sizeof...(A);
}

template <auto kernel>
static void launch_body() {
    call<kernel>(kernel, std::make_index_sequence<count(kernel)>());
}

struct Kernel {
    void (*body)();
    std::size_t n_arguments;
};

#define KERNEL(...) {#__VA_ARGS__, {launch_body<&__VA_ARGS__>, count(&__VA_ARGS__)}}

static const std::map<std::string, Kernel> kernels = {
#include NAMES
};

// Runs a kernel as cuLaunchKernel would; returns what went wrong, or null.
extern "C" const char *launch(
    const char *name, unsigned n_blocks, unsigned n_threads, std::size_t shared_bytes,
    void **given, std::size_t n_given, unsigned seed)
{
    const auto found = kernels.find(name);
    if (found == kernels.end()) return "no kernel has this name";
    if (found->second.n_arguments != n_given) return "the kernel takes another number of arguments";
    if (n_blocks == 0 || n_threads == 0 || n_threads > 1024) return "not a size that CUDA takes";
    if (shared_bytes > sizeof memory - 64) return "so much shared memory is not at hand";
    arguments = given;
    body = found->second.body;
    gridDim.x = n_blocks;
    blockDim.x = n_threads;
    fibers.resize(n_threads);
    exchanged.resize(n_threads + 32);
    voted.resize(n_threads);
    std::mt19937 random(seed);
    std::vector<unsigned> blocks(n_blocks);
    std::iota(blocks.begin(), blocks.end(), 0u);
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (unsigned block : blocks) {
        blockIdx.x = block;
        unsigned char *bytes = (unsigned char *)memory, *after = bytes + shared_bytes;
        std::memset(bytes, 0xff, shared_bytes);  // NaN, or -1
        std::memset(after, 0xcb, 64);
        if (const char *error = run_block(random)) return error;
        for (int i = 0; i < 64; ++i)
            if (after[i] != 0xcb) return "the kernel wrote beyond its shared memory";
        if (std::exchange(misaligned, false)) return "the kernel used an address off its alignment";
    }
    return nullptr;
}
