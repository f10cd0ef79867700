#include <algorithm>

#include "ops/act/act.h"
#include "ops/act/act_simd.h"

namespace perigee::ops::cpu {
namespace {

constexpr int64_t kBlock =
    1024;  // columns of one work item: about a microsecond, so that one row can use all threads

void run(const Context& context, ActFunction f, const Tensor& a, const Tensor& b, float b1,
         float b2, const Tensor& out) {
  const int64_t width = a.dims[1];
  const int64_t blocks = (width + kBlock - 1) / kBlock;
  context.pool->parallel_for(a.rows() * blocks, [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / blocks;
        const int64_t c = i % blocks * kBlock;
        act_row<isa>(f, a.row<bf16>(t) + c, b.row<bf16>(t) + c, b1, b2, std::min(kBlock, width - c),
                     out.row<bf16>(t) + c);
      }
    });
  });
}

}  // namespace

void glu(const Context& context, const Tensor& gate, const Tensor& up, const GluParams& params,
         const Tensor& out) {
  run(context, params.kind == GluKind::kSitu ? ActFunction::kSitu : ActFunction::kSilu, gate, up,
      static_cast<float>(params.beta), static_cast<float>(params.linear_beta), out);
}

void sigmoid_gate(const Context& context, const Tensor& x, const Tensor& gate, const Tensor& out) {
  run(context, ActFunction::kSigmoidGate, x, gate, 0, 0, out);
}

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out) {
  run(context, ActFunction::kAdd, a, b, 0, 0, out);
}

}  // namespace perigee::ops::cpu
