// The number formats in device code: what the host's tests prove holds on the GPU, since it is the same constexpr source.
// Compiled for every supported architecture; run by the GPU tests.
#include "num/bf16.h"
#include "num/formats.h"

namespace perigee::num {

// codes[i] = the e4m3, e2m1 and BF16 code of values[i]; back[i] = what these codes mean.
__global__ void convert_formats_kernel(const float* values, int n, uint8_t* e4m3, uint8_t* e2m1, uint16_t* bf, float* back) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  e4m3[i] = to_e4m3(values[i]);
  e2m1[i] = to_e2m1(values[i]);
  bf[i] = to_bf16(values[i]).bits;
  back[3 * i] = from_e4m3(e4m3[i]);
  back[3 * i + 1] = from_e2m1(e2m1[i]);
  back[3 * i + 2] = to_float(bf16{bf[i]}) * from_e8m0(mxfp4_scale(values[i]));
}

}  // namespace perigee::num
