// What    Gated activations on a GPU, for ops/act and for kernels that fuse them.
// Owner   ops. Included by GPU sources only.
// Threads Per thread.
// Errors  None.
// Source  docs/kernels/arithmetic.md, "Experts on packed MXFP4", order of addition 2. The polynomial of tanh near zero has the
//         coefficients of Cephes' tanhf.
#pragma once

#include "ops/gpu_mma.cuh"

namespace perigee::ops::gpu {

constexpr float kLog2E = 1.4426950408889634f;

// tanh(x) as numerator over denominator; t = exp(-2 |x|).
__device__ inline void tanh_parts(float x, float t, float& numerator, float& denominator) {
  const float z = x * x;
  float p = fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  const bool small = fabsf(x) < 0.625f;
  numerator = small ? fmaf(p * z, x, x) : copysignf(1.0f - t, x);
  denominator = small ? 1.0f : 1.0f + t;
}

// The constants of SiTU, rounded once on the host.
struct Situ {
  float gate_inverse;    // 1 / beta
  float up_inverse;      // 1 / linear_beta
  float gate_exponent;   // -log2(e) / 2: the exponential of half the gate serves the sigmoid; tanh takes its power 4 / beta
  float up_exponent;     // -2 log2(e) / linear_beta
  float tanh_exponent;   // -2 log2(e) / beta
  float product;         // beta linear_beta
};

__host__ inline Situ situ_of(double beta, double linear_beta) {
  constexpr double kLog2 = 1.4426950408889634073599;
  return {static_cast<float>(1 / beta),           static_cast<float>(1 / linear_beta),
          static_cast<float>(-kLog2 / 2),         static_cast<float>(-2 * kLog2 / linear_beta),
          static_cast<float>(-2 * kLog2 / beta),  static_cast<float>(beta * linear_beta)};
}

// b1 tanh(g / b1) sigmoid(g) b2 tanh(u / b2). With beta 4, as published, one exponential serves tanh and sigmoid of the gate.
__device__ inline float situ(float g, float u, const Situ& c) {
  const float a = fast_ex2(fabsf(g) * c.gate_exponent);
  const float b = fast_ex2(fabsf(u) * c.up_exponent);
  const float s = a * a;
  const float t = c.tanh_exponent == c.gate_exponent ? a : fast_ex2(fabsf(g) * c.tanh_exponent);
  float gate_numerator, gate_denominator, up_numerator, up_denominator;
  tanh_parts(g * c.gate_inverse, t, gate_numerator, gate_denominator);
  tanh_parts(u * c.up_inverse, b, up_numerator, up_denominator);
  return (c.product * gate_numerator) * (up_numerator * (g < 0 ? s : 1.0f)) *
         fast_rcp((gate_denominator * up_denominator) * (1.0f + s));
}

__device__ inline float fast_sigmoid(float x) { return fast_rcp(1.0f + fast_ex2(-x * kLog2E)); }

__device__ inline float silu(float x) { return x * fast_sigmoid(x); }

}  // namespace perigee::ops::gpu
