// What    What every operation needs besides its tensors: the device, its threads and the instruction set in use.
// Owner   ops. One per engine, made by make_context.
// Threads Operations of one context run one after the other.
// Errors  None.
#pragma once

#include <string_view>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "num/isa.h"
#include "tensor/mover.h"
#include "tensor/tensor.h"

namespace perigee::ops {

struct Context {
  tensor::Device device = tensor::Device::kCpu;
  ThreadPool* pool = nullptr;
  Isa isa = Isa::kGeneric;
  bool amx = false;  // matrix tiles for products of several rows; the bits are those of the vector code
  void* stream = nullptr;  // kCuda: where the work goes, a cudaStream_t

  tensor::Mover mover() const { return {device, stream}; }
};

// Whether operations have device code in this build.
#if defined(PERIGEE_WITH_CUDA)
constexpr bool kCudaBuilt = true;
#else
constexpr bool kCudaBuilt = false;
#endif

// The best instructions of this machine.
inline Context make_context(tensor::Device device, ThreadPool* pool) {
  const CpuFeatures& f = cpu_features();
  const Isa isa = f.avx512 ? Isa::kAvx512 : f.avx2 ? Isa::kAvx2 : Isa::kGeneric;
  return {device, pool, isa, f.amx, nullptr};
}

// The same with at most the named instructions: "generic", "avx2", "avx512" or "amx"; "auto" limits nothing. Slower sets
// serve comparisons. Aborts on another word.
inline Context limit_isa(Context context, std::string_view name) {
  if (name == "auto" || name == "amx") return context;
  context.amx = false;
  if (name == "avx512") return context;
  if (name == "avx2") {
    if (context.isa == Isa::kAvx512) context.isa = Isa::kAvx2;
    return context;
  }
  CHECK(name == "generic");
  context.isa = Isa::kGeneric;
  return context;
}

// Calls f.template operator()<isa>() for the context's instruction set.
template <class F>
decltype(auto) with_isa(Isa isa, F&& f) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAvx512: return f.template operator()<Isa::kAvx512>();
    case Isa::kAvx2: return f.template operator()<Isa::kAvx2>();
    case Isa::kGeneric: break;
  }
#endif
  return f.template operator()<Isa::kGeneric>();
}

// Type of activations between operations, and of values that are never rounded to BF16.
constexpr tensor::DType activation_dtype(tensor::Device d) {
  return d == tensor::Device::kReference ? tensor::DType::kF64 : tensor::DType::kBF16;
}
constexpr tensor::DType real_dtype(tensor::Device d) {
  return d == tensor::Device::kReference ? tensor::DType::kF64 : tensor::DType::kF32;
}

}  // namespace perigee::ops
