#include "num/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "num/record_codec.h"

namespace perigee {
namespace {

// The value of an e4m3 code from the definition.
double e4m3_by_definition(int code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

constexpr double kE2m1Values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// The magnitude code nearest to |x| among `values`, ties to the even code.
int nearest(double x, const std::vector<double>& values) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double a = std::abs(values[code] - std::abs(x));
    const double b = std::abs(values[best] - std::abs(x));
    if (a < b || (a == b && code % 2 == 0)) best = code;
  }
  return best;
}

// Random floats over the range, their neighbours, exact values and midpoints of the format.
std::vector<float> probes(const std::vector<double>& values) {
  std::vector<float> out;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (const double v : {values[i], (values[i] + values[i + 1]) / 2, values[i + 1]}) {
      const float f = static_cast<float>(v);
      out.insert(out.end(), {f, std::nextafter(f, 1e9f), std::nextafter(f, -1e9f)});
    }
  }
  for (uint64_t i = 0; i < 20000; ++i) {
    out.push_back(
        std::ldexp(random_uniform(1, i) - 0.5f, static_cast<int>(random_bits(2, i) % 24) - 12));
  }
  const size_t n = out.size();
  for (size_t i = 0; i < n; ++i) out.push_back(-out[i]);
  return out;
}

TEST(E4m3, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = from_e4m3(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, e4m3_by_definition(code));
    }
    EXPECT_EQ(std::signbit(value), code >= 0x80);
    EXPECT_EQ(to_e4m3(value), code);
  }
}

TEST(E4m3, RoundsToNearestEven) {
  std::vector<double> values;
  for (int code = 0; code < 0x7f; ++code) values.push_back(e4m3_by_definition(code));
  for (const float x : probes(values)) {
    ASSERT_EQ(to_e4m3(x), nearest(x, values) | (std::signbit(x) ? 0x80 : 0)) << x;
  }
}

TEST(E4m3, HandNumbers) {
  EXPECT_EQ(to_e4m3(1.0f), 0x38);
  EXPECT_EQ(to_e4m3(-448.0f), 0xfe);
  EXPECT_EQ(to_e4m3(464.0f), 0x7e);  // would be 480, which is NaN's place
  EXPECT_EQ(to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(to_e4m3(INFINITY), 0x7e);
  EXPECT_EQ(to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(to_e4m3(NAN) & 0x7f, 0x7f);
  EXPECT_EQ(to_e4m3(0x1p-9f), 0x01);
  EXPECT_EQ(to_e4m3(0x1p-10f), 0x00);  // a tie between 0 and the smallest value: even
  EXPECT_EQ(to_e4m3(0x1.000002p-10f), 0x01);
  EXPECT_EQ(to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(to_e4m3(1.0625f), 0x38);  // tie, even below
  EXPECT_EQ(to_e4m3(1.1875f), 0x3a);  // tie, even above
}

TEST(E2m1, EveryCodeAndEveryTie) {
  const std::vector<double> values(kE2m1Values, kE2m1Values + 8);
  for (int code = 0; code < 16; ++code) {
    const float value = from_e2m1(static_cast<uint8_t>(code));
    EXPECT_EQ(std::abs(value), kE2m1Values[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(to_e2m1(value), code);
  }
  for (const float x : probes(values)) {
    ASSERT_EQ(to_e2m1(x), nearest(x, values) | (std::signbit(x) ? 8 : 0)) << x;
  }
  EXPECT_EQ(to_e2m1(2.5f), 4);
  EXPECT_EQ(to_e2m1(5.0f), 6);
  EXPECT_EQ(to_e2m1(0.25f), 0);
  EXPECT_EQ(to_e2m1(1e30f), 7);
  EXPECT_EQ(to_e2m1(-INFINITY), 15);
}

TEST(E8m0, PowersOfTwoAndNan) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(from_e8m0(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(from_e8m0(255)));
}

TEST(Mxfp4Scale, IsTheSmallestPowerOfTwoThatFits) {
  EXPECT_EQ(mxfp4_scale(6.0f), 127);
  EXPECT_EQ(mxfp4_scale(std::nextafter(6.0f, 7.0f)), 128);
  EXPECT_EQ(mxfp4_scale(3.0f), 126);
  EXPECT_EQ(mxfp4_scale(1.0f), 125);  // 1 / 6 rounds up to 1/4
  EXPECT_EQ(mxfp4_scale(0.0f), 1);
  EXPECT_EQ(mxfp4_scale(1e-40f), 1);
  EXPECT_EQ(mxfp4_scale(3.4e38f), 253);
  EXPECT_EQ(mxfp4_scale(INFINITY), 253);
  EXPECT_EQ(mxfp4_scale(NAN), 255);
  for (uint64_t i = 0; i < 20000; ++i) {
    const float x =
        std::ldexp(random_uniform(3, i) + 0.5f, static_cast<int>(random_bits(4, i) % 240) - 115);
    const double s = std::ldexp(1.0, mxfp4_scale(x) - 127);
    ASSERT_LE(x, 6 * s) << x;
    ASSERT_GT(x, 3 * s) << x;
  }
}

TEST(Records, PublishedSizes) {
  EXPECT_EQ(latent_bytes(LatentFormat::kBf16, 512, 64), 1152);
  EXPECT_EQ(latent_bytes(LatentFormat::kFp8, 512, 64), 576);
  EXPECT_EQ(latent_bytes(LatentFormat::kNvfp4, 512, 64), 352);
  EXPECT_EQ(latent_bytes(LatentFormat::kF64, 512, 64), 4608);
  EXPECT_EQ(key_bytes(KeyFormat::kBf16, 128), 256);
  EXPECT_EQ(key_bytes(KeyFormat::kFp8, 128), 132);
  EXPECT_EQ(key_bytes(KeyFormat::kMxfp4, 128), 68);
  EXPECT_EQ(key_bytes(KeyFormat::kFp8, 40), 44);
  EXPECT_EQ(key_bytes(KeyFormat::kFp8, 130), 138);
}

TEST(Records, WidthsThatAFormatCannotHold) {
  EXPECT_EQ(latent_bytes(LatentFormat::kNvfp4, 24, 8), 0);
  EXPECT_EQ(key_bytes(KeyFormat::kMxfp4, 48), 0);
  EXPECT_EQ(latent_bytes(LatentFormat::kFp8, 13, 3), 16);
  EXPECT_EQ(key_bytes(KeyFormat::kBf16, 7), 14);
}

TEST(Records, Nvfp4LatentByHand) {
  // Group 0: amax 12, scale 2. Group 1: all zero. Then two extra dims. Scales come last.
  std::vector<float> latent(32, 0.0f);
  latent[0] = 12;    // 6 -> code 7
  latent[1] = -1;    // -0.5 -> code 9
  latent[2] = 2.5f;  // 1.25: tie between codes 2 and 3 -> 2
  latent[3] = 0.4f;  // 0.2 -> 0
  const float rope[2] = {1.0f, -500.0f};
  uint8_t out[20];
  encode_latent(LatentFormat::kNvfp4, latent.data(), 32, rope, 2, out);
  EXPECT_EQ(out[0], 0x97);
  EXPECT_EQ(out[1], 0x02);
  for (int i = 2; i < 16; ++i) EXPECT_EQ(out[i], 0);
  EXPECT_EQ(out[16], 0x38);
  EXPECT_EQ(out[17], 0xfe);
  EXPECT_EQ(out[18], 0x40);  // 2.0
  EXPECT_EQ(out[19], 0x00);
  float back[34];
  decode_latent(LatentFormat::kNvfp4, out, 32, 2, back);
  EXPECT_EQ(back[0], 12.0f);
  EXPECT_EQ(back[1], -1.0f);
  EXPECT_EQ(back[2], 2.0f);
  EXPECT_EQ(back[3], 0.0f);
  EXPECT_EQ(back[32], 1.0f);
  EXPECT_EQ(back[33], -448.0f);
}

TEST(Records, Nvfp4GroupThatUnderflowsIsZeros) {
  std::vector<float> latent(16, 0x1p-8f);  // amax / 6 is below half of the smallest scale
  uint8_t out[9];
  encode_latent(LatentFormat::kNvfp4, latent.data(), 16, nullptr, 0, out);
  for (const uint8_t byte : out) EXPECT_EQ(byte, 0);
  latent[5] = 0x1p-6f;
  encode_latent(LatentFormat::kNvfp4, latent.data(), 16, nullptr, 0, out);
  EXPECT_EQ(out[8], 1);  // 2^-6 / 6 = 1.33 * 2^-9
}

TEST(Records, Nvfp4SaturatesAndKeepsNan) {
  std::vector<float> latent(16, 1e6f);
  uint8_t out[9];
  float back[16];
  encode_latent(LatentFormat::kNvfp4, latent.data(), 16, nullptr, 0, out);
  decode_latent(LatentFormat::kNvfp4, out, 16, 0, back);
  EXPECT_EQ(back[0], 2688.0f);  // 6 * 448
  latent[3] = NAN;
  encode_latent(LatentFormat::kNvfp4, latent.data(), 16, nullptr, 0, out);
  decode_latent(LatentFormat::kNvfp4, out, 16, 0, back);
  for (const float x : back) EXPECT_TRUE(std::isnan(x));
}

TEST(Records, Fp8KeyByHand) {
  std::vector<float> key = {896.0f, -2.0f, 1.0f, 0.0f};
  uint8_t values[4];
  float scale;
  encode_key(KeyFormat::kFp8, key.data(), 4, values, reinterpret_cast<uint8_t*>(&scale));
  EXPECT_EQ(scale, 2.0f);
  EXPECT_EQ(values[0], 0x7e);
  EXPECT_EQ(values[1], 0xb8);
  EXPECT_EQ(values[2], 0x30);
  EXPECT_EQ(values[3], 0x00);
  key.assign(4, 0.0f);
  encode_key(KeyFormat::kFp8, key.data(), 4, values, reinterpret_cast<uint8_t*>(&scale));
  EXPECT_EQ(scale, 1e-4f / 448.0f);
}

TEST(Records, Fp8KeysHaveOneScalePer128) {
  std::vector<float> key(130, 448.0f);
  key[128] = key[129] = 224.0f;
  uint8_t values[130];
  float scales[2];
  encode_key(KeyFormat::kFp8, key.data(), 130, values, reinterpret_cast<uint8_t*>(scales));
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[1], 0.5f);
  std::vector<float> back(130);
  decode_key(KeyFormat::kFp8, values, reinterpret_cast<uint8_t*>(scales), 130, back.data());
  EXPECT_EQ(back, key);
}

TEST(Records, Mxfp4KeyByHand) {
  std::vector<float> key(32, 0.0f);
  key[0] = 6.5f;   // scale 2: 3.25 -> 3
  key[1] = -1.0f;  // -0.5
  key[31] = 5.0f;  // 2.5: tie between 2 and 3 -> 2, the even code
  uint8_t values[16];
  uint8_t scale;
  encode_key(KeyFormat::kMxfp4, key.data(), 32, values, &scale);
  EXPECT_EQ(scale, 128);
  EXPECT_EQ(values[0], 0x95);
  EXPECT_EQ(values[15], 0x40);
  float back[32];
  decode_key(KeyFormat::kMxfp4, values, &scale, 32, back);
  EXPECT_EQ(back[0], 6.0f);
  EXPECT_EQ(back[1], -1.0f);
  EXPECT_EQ(back[31], 4.0f);
}

}  // namespace
}  // namespace perigee
