#include "ops/norm/norm.h"
#include "ops/norm/norm_simd.h"

namespace perigee::ops::cpu {

void rms_norm(const Context& context, const Tensor& x, const Tensor& weight, double eps,
              const Tensor& out) {
  const bool half = weight.dtype == tensor::DType::kBF16;
  const NormWeight w = {half ? weight.as<bf16>() : nullptr, half ? nullptr : weight.as<float>()};
  context.pool->parallel_for(x.rows(), [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t t = begin; t < end; ++t) {
        rms_norm_row<isa>(x.row<bf16>(t), w, static_cast<float>(eps), x.dims[1], out.row<bf16>(t));
      }
    });
  });
}

void layer_norm(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& out) {
  context.pool->parallel_for(x.rows(), [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t t = begin; t < end; ++t) {
        layer_norm_row<isa>(x.row<bf16>(t), weight.as<float>(), bias.as<float>(),
                            static_cast<float>(eps), x.dims[1], out.row<bf16>(t));
      }
    });
  });
}

void gated_rms_norm(const Context& context, const Tensor& x, const Tensor& weight,
                    const Tensor& gate, double eps, const Tensor& out) {
  const int64_t heads = x.dims[1];
  const int64_t width = x.dims[2];
  context.pool->parallel_for(x.rows() * heads, [&](int64_t begin, int64_t end) {
    with_isa(context.isa, [&]<Isa isa>() {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / heads;
        const int64_t column = i % heads * width;
        gated_rms_norm_row<isa>(x.row<float>(t) + column, weight.as<float>(),
                                gate.row<bf16>(t) + column, static_cast<float>(eps), width,
                                out.row<bf16>(t) + column);
      }
    });
  });
}

}  // namespace perigee::ops::cpu
