// Which tensor-core instructions give the same bits, so that the paths of one operation may mix them
// (docs/kernels/arithmetic.md).
//   perigee_bench_instructions
// A is [64, K], B is [256, K]; every variant computes D = A B^T in FP32 over ascending steps of 32 bytes. Printed per type and
// K: how many of the 64 x 256 results differ from those of the first variant, and the largest error against double relative
// to sum |a b|.
// Status 1 if a result is further from double than 2^-8, which would mean a wrong operand layout.
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>

#include "num/bf16.h"
#include "num/formats.h"

namespace perigee::bench {
namespace {

constexpr int kRows = 64;       // of A
constexpr int kColumns = 256;   // rows of B
constexpr int kStepBytes = 32;  // of K in one instruction, for every type

enum class Type { kBf16, kF16, kTf32, kE4m3 };

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "perigee_bench_instructions: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

__device__ uint32_t word(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// What a lane holds of 16 rows and one step, as mma.sync and wgmma with A in registers want it.
__device__ void load_a(const uint8_t* a, int64_t stride, uint32_t (&r)[4]) {
  const int lane = threadIdx.x % 32;
  const uint8_t* const p = a + lane / 4 * stride + lane % 4 * 4;
  r[0] = word(p);
  r[1] = word(p + 8 * stride);
  r[2] = word(p + 16);
  r[3] = word(p + 8 * stride + 16);
}

template <Type type>
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#define PERIGEE_MMA(shape)                                                                                          \
  asm volatile("mma.sync.aligned." shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                   \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (type == Type::kBf16) PERIGEE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  if constexpr (type == Type::kF16) PERIGEE_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  if constexpr (type == Type::kTf32) PERIGEE_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  if constexpr (type == Type::kE4m3) PERIGEE_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32");
#undef PERIGEE_MMA
}

// One warp: 16 rows of a, 8 rows of b. d[row * d_row + column * d_column].
template <Type type>
__global__ void mma_kernel(const uint8_t* a, const uint8_t* b, int64_t bytes, float* d, int d_row, int d_column) {
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.x * 16;
  const int column = blockIdx.y * 8;
  float acc[4] = {};
  for (int64_t k = 0; k < bytes; k += kStepBytes) {
    uint32_t ra[4];
    load_a(a + row * bytes + k, bytes, ra);
    const uint8_t* const p = b + (column + lane / 4) * bytes + k + lane % 4 * 4;
    const uint32_t rb[2] = {word(p), word(p + 16)};
    mma<type>(acc, ra, rb);
  }
  for (int i = 0; i < 4; ++i) {
    const int r = row + lane / 4 + i / 2 * 8;
    const int c = column + lane % 4 * 2 + i % 2;
    d[r * d_row + c * d_column] = acc[i];
  }
}

// BF16 in two halves of a step: what m16n8k8 makes of it.
__global__ void mma_k8_kernel(const uint8_t* a, const uint8_t* b, int64_t bytes, float* d, int d_row, int d_column) {
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.x * 16;
  const int column = blockIdx.y * 8;
  float acc[4] = {};
  for (int64_t k = 0; k < bytes; k += 16) {
    const uint8_t* const pa = a + (row + lane / 4) * bytes + k + lane % 4 * 4;
    const uint8_t* const pb = b + (column + lane / 4) * bytes + k + lane % 4 * 4;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(word(pa)), "r"(word(pa + 8 * bytes)), "r"(word(pb)));
  }
  for (int i = 0; i < 4; ++i) {
    d[(row + lane / 4 + i / 2 * 8) * d_row + (column + lane % 4 * 2 + i % 2) * d_column] = acc[i];
  }
}

// Shared memory without swizzle: eight rows of 16 bytes are one core matrix; the two of a step lie `rows * 16` bytes apart.
__device__ uint64_t descriptor(const uint8_t* tile, int rows) {
  cute::GmmaDescriptor desc;
  desc.bitfield.start_address_ = static_cast<uint32_t>(__cvta_generic_to_shared(tile)) >> 4;
  desc.bitfield.leading_byte_offset_ = rows * 16 >> 4;
  desc.bitfield.stride_byte_offset_ = 128 >> 4;
  desc.bitfield.base_offset_ = 0;
  desc.bitfield.layout_type_ = 0;
  return desc;
}

__device__ void stage(const uint8_t* from, int64_t stride, int rows, uint8_t* tile) {
  for (int i = threadIdx.x; i < rows * 8; i += 128) {
    const int row = i / 8;
    const int at = i % 8 * 4;
    *reinterpret_cast<uint32_t*>(tile + at / 16 * rows * 16 + row * 16 + at % 16) = word(from + row * stride + at);
  }
}

template <class Op, size_t... I>
__device__ void fma_ss(uint64_t a, uint64_t b, float* d, std::index_sequence<I...>) {
  Op::fma(a, b, d[I]..., cute::SM90::GMMA::ScaleOut::One);
}
template <class Op, size_t... I>
__device__ void fma_rs(const uint32_t (&a)[4], uint64_t b, float* d, std::index_sequence<I...>) {
  Op::fma(a[0], a[1], a[2], a[3], b, d[I]..., cute::SM90::GMMA::ScaleOut::One);
}

// One warpgroup: 64 rows of a, N rows of b.
template <class Op, int N, bool from_registers>
__global__ void wgmma_kernel(const uint8_t* a, const uint8_t* b, int64_t bytes, float* d, int d_row, int d_column) {
  __shared__ alignas(128) uint8_t tile_a[64 * kStepBytes];
  __shared__ alignas(128) uint8_t tile_b[N * kStepBytes];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.x * 64;
  const int column = blockIdx.y * N;
  float acc[N / 2] = {};
  for (int64_t k = 0; k < bytes; k += kStepBytes) {
    stage(a + row * bytes + k, bytes, 64, tile_a);
    stage(b + column * bytes + k, bytes, N, tile_b);
    uint32_t ra[4];
    load_a(a + (row + warp * 16) * bytes + k, bytes, ra);
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    cute::warpgroup_arrive();
    if constexpr (from_registers) {
      fma_rs<Op>(ra, descriptor(tile_b, N), acc, std::make_index_sequence<N / 2>());
    } else {
      fma_ss<Op>(descriptor(tile_a, 64), descriptor(tile_b, N), acc, std::make_index_sequence<N / 2>());
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    __syncthreads();
  }
  for (int i = 0; i < N / 2; ++i) {
    const int r = row + warp * 16 + lane / 4 + i % 4 / 2 * 8;
    const int c = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[r * d_row + c * d_column] = acc[i];
  }
}

// One chain of fused multiply-adds over the elements in order.
template <Type type>
__global__ void fma_kernel(const uint8_t* a, const uint8_t* b, int64_t bytes, float* d, int d_row, int d_column) {
  const int r = blockIdx.x;
  const int c = threadIdx.x;
  constexpr int kSize = type == Type::kTf32 ? 4 : type == Type::kE4m3 ? 1 : 2;
  const auto value = [](const uint8_t* p) {
    if constexpr (type == Type::kBf16) return to_float(*reinterpret_cast<const bf16*>(p));
    if constexpr (type == Type::kF16) return __half2float(*reinterpret_cast<const __half*>(p));
    if constexpr (type == Type::kTf32) return *reinterpret_cast<const float*>(p);
    if constexpr (type == Type::kE4m3) return from_e4m3(*p);
  };
  float sum = 0;
  for (int64_t k = 0; k < bytes; k += kSize) sum = fmaf(value(a + r * bytes + k), value(b + c * bytes + k), sum);
  d[r * d_row + c * d_column] = sum;
}

using Kernel = void (*)(const uint8_t*, const uint8_t*, int64_t, float*, int, int);

struct Variant {
  std::string name;
  Kernel kernel;
  int rows;     // of its first operand in a block
  int columns;  // of its second
  int threads;
  bool swapped;  // B is the first operand
};

template <class Op, int N, bool from_registers>
void add_wgmma(std::vector<Variant>& out, const char* name) {
  const char* const source = from_registers ? "A in registers" : "A in shared memory";
  for (const bool swapped : {false, true}) {
    if (swapped && N > kRows) continue;
    out.push_back({std::string("wgmma ") + name + ", N " + std::to_string(N) + ", " + source + (swapped ? ", roles swapped" : ""),
                   wgmma_kernel<Op, N, from_registers>, 64, N, 128, swapped});
  }
}

using namespace cute::SM90::GMMA;
constexpr auto kK = Major::K;

template <Type type>
std::vector<Variant> variants() {
  std::vector<Variant> out;
  const auto add_mma = [&] {
    for (const bool swapped : {false, true}) {
      out.push_back({std::string("mma.sync m16n8") + (swapped ? ", roles swapped" : ""), mma_kernel<type>, 16, 8, 32, swapped});
    }
  };
  if constexpr (type != Type::kE4m3) add_mma();
  if constexpr (type == Type::kBf16) {
    add_wgmma<MMA_64x8x16_F32BF16BF16_SS<kK, kK>, 8, false>(out, "m64k16");
    add_wgmma<MMA_64x16x16_F32BF16BF16_SS<kK, kK>, 16, false>(out, "m64k16");
    add_wgmma<MMA_64x32x16_F32BF16BF16_SS<kK, kK>, 32, false>(out, "m64k16");
    add_wgmma<MMA_64x64x16_F32BF16BF16_SS<kK, kK>, 64, false>(out, "m64k16");
    add_wgmma<MMA_64x128x16_F32BF16BF16_SS<kK, kK>, 128, false>(out, "m64k16");
    add_wgmma<MMA_64x256x16_F32BF16BF16_SS<kK, kK>, 256, false>(out, "m64k16");
    add_wgmma<MMA_64x8x16_F32BF16BF16_RS<kK, kK>, 8, true>(out, "m64k16");
    add_wgmma<MMA_64x64x16_F32BF16BF16_RS<kK, kK>, 64, true>(out, "m64k16");
    add_wgmma<MMA_64x256x16_F32BF16BF16_RS<kK, kK>, 256, true>(out, "m64k16");
    out.push_back({"mma.sync m16n8k8", mma_k8_kernel, 16, 8, 32, false});
  }
  if constexpr (type == Type::kF16) {
    add_wgmma<MMA_64x8x16_F32F16F16_SS<kK, kK>, 8, false>(out, "m64k16");
    add_wgmma<MMA_64x64x16_F32F16F16_RS<kK, kK>, 64, true>(out, "m64k16");
    add_wgmma<MMA_64x256x16_F32F16F16_SS<kK, kK>, 256, false>(out, "m64k16");
  }
  if constexpr (type == Type::kTf32) {
    add_wgmma<MMA_64x8x8_F32TF32TF32_SS_TN<>, 8, false>(out, "m64k8");
    add_wgmma<MMA_64x64x8_F32TF32TF32_RS_TN<>, 64, true>(out, "m64k8");
    add_wgmma<MMA_64x256x8_F32TF32TF32_SS_TN<>, 256, false>(out, "m64k8");
  }
  if constexpr (type == Type::kE4m3) {
    add_wgmma<MMA_64x8x32_F32E4M3E4M3_SS_TN<>, 8, false>(out, "m64k32");
    add_wgmma<MMA_64x16x32_F32E4M3E4M3_SS_TN<>, 16, false>(out, "m64k32");
    add_wgmma<MMA_64x32x32_F32E4M3E4M3_SS_TN<>, 32, false>(out, "m64k32");
    add_wgmma<MMA_64x64x32_F32E4M3E4M3_SS_TN<>, 64, false>(out, "m64k32");
    add_wgmma<MMA_64x128x32_F32E4M3E4M3_SS_TN<>, 128, false>(out, "m64k32");
    add_wgmma<MMA_64x256x32_F32E4M3E4M3_SS_TN<>, 256, false>(out, "m64k32");
    add_wgmma<MMA_64x8x32_F32E4M3E4M3_RS_TN<>, 8, true>(out, "m64k32");
    add_wgmma<MMA_64x64x32_F32E4M3E4M3_RS_TN<>, 64, true>(out, "m64k32");
    add_wgmma<MMA_64x256x32_F32E4M3E4M3_RS_TN<>, 256, true>(out, "m64k32");
    add_mma();
  }
  out.push_back({"fused multiply-adds, one chain", fma_kernel<type>, 1, kColumns, kColumns, false});
  return out;
}

double uniform(uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<double>(state >> 11) * 0x1p-53;
}
double normal(uint64_t& state) {
  return std::sqrt(-2 * std::log(uniform(state) + 1e-300)) * std::cos(6.283185307179586 * uniform(state));
}

// Encodes x and returns what the code means.
template <Type type>
double encode(double x, uint8_t* p) {
  const float f = static_cast<float>(x);
  if constexpr (type == Type::kBf16) {
    const bf16 h = to_bf16(f);
    std::memcpy(p, &h, 2);
    return to_float(h);
  }
  if constexpr (type == Type::kF16) {
    const __half h = __float2half(f);
    std::memcpy(p, &h, 2);
    return __half2float(h);
  }
  if constexpr (type == Type::kTf32) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    u &= 0xffffe000u;
    std::memcpy(p, &u, 4);
    float g;
    std::memcpy(&g, &u, 4);
    return g;
  }
  if constexpr (type == Type::kE4m3) {
    *p = to_e4m3(f);
    return from_e4m3(*p);
  }
}

template <Type type>
bool compare(const char* name, int64_t k) {
  constexpr int kSize = type == Type::kTf32 ? 4 : type == Type::kE4m3 ? 1 : 2;
  const int64_t bytes = k * kSize;
  std::vector<uint8_t> a(kRows * bytes), b(kColumns * bytes);
  std::vector<double> wide_a(kRows * k), wide_b(kColumns * k);
  uint64_t state = static_cast<uint64_t>(k) * 77 + 5;
  for (size_t i = 0; i < wide_a.size(); ++i) wide_a[i] = encode<type>(normal(state), &a[i * kSize]);
  for (size_t i = 0; i < wide_b.size(); ++i) wide_b[i] = encode<type>(normal(state), &b[i * kSize]);
  uint8_t *da, *db;
  float* dd;
  check(cudaMalloc(&da, a.size()), "malloc");
  check(cudaMalloc(&db, b.size()), "malloc");
  check(cudaMalloc(&dd, kRows * kColumns * 4), "malloc");
  check(cudaMemcpy(da, a.data(), a.size(), cudaMemcpyHostToDevice), "copy");
  check(cudaMemcpy(db, b.data(), b.size(), cudaMemcpyHostToDevice), "copy");
  std::vector<float> first, d(kRows * kColumns);
  bool good = true;
  for (const Variant& v : variants<type>()) {
    check(cudaMemset(dd, 0xff, kRows * kColumns * 4), "poison");
    const int rows = v.swapped ? kColumns : kRows;
    const int columns = v.swapped ? kRows : kColumns;
    v.kernel<<<dim3(rows / v.rows, columns / v.columns), v.threads>>>(v.swapped ? db : da, v.swapped ? da : db, bytes, dd,
                                                                     v.swapped ? 1 : kColumns, v.swapped ? kColumns : 1);
    check(cudaGetLastError(), v.name.c_str());
    check(cudaMemcpy(d.data(), dd, d.size() * 4, cudaMemcpyDeviceToHost), v.name.c_str());
    if (first.empty()) first = d;
    int different = 0;
    double worst = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) {
        const float got = d[static_cast<size_t>(r * kColumns + c)];
        different += std::memcmp(&got, &first[static_cast<size_t>(r * kColumns + c)], 4) != 0 ? 1 : 0;
        if (r >= 16 && r < 48) continue;  // a part is enough for the error
        double exact = 0, magnitude = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double p = wide_a[static_cast<size_t>(r * k + i)] * wide_b[static_cast<size_t>(c * k + i)];
          exact += p;
          magnitude += std::abs(p);
        }
        const double error = std::abs(got - exact) / magnitude;
        worst = error > worst || std::isnan(error) ? error : worst;
      }
    }
    std::printf("%-5s K %5ld  %-50s %6d differ   error %.1e\n", name, static_cast<long>(k), v.name.c_str(), different, worst);
    good = good && worst < 0x1p-8;
  }
  cudaFree(da);
  cudaFree(db);
  cudaFree(dd);
  return good;
}

}  // namespace
}  // namespace perigee::bench

int main() {
  using namespace perigee::bench;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "no device");
  std::printf("%s, compute capability %d.%d\n", properties.name, properties.major, properties.minor);
  bool good = true;
  for (const int64_t k : {128, 1792, 7168}) good = compare<Type::kBf16>("bf16", k) && good;
  for (const int64_t k : {128, 1792}) good = compare<Type::kF16>("f16", k) && good;
  for (const int64_t k : {128, 1792}) good = compare<Type::kTf32>("tf32", k) && good;
  for (const int64_t k : {32, 128, 512, 1792}) good = compare<Type::kE4m3>("e4m3", k) && good;
  return good ? 0 : 1;
}
