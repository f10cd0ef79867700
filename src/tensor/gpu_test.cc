// Runs on machines with and without a GPU: without one, the refusals are what is checked.
#include "tensor/gpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <vector>

#include "tensor/gpu_fault.h"

namespace perigee::tensor {
namespace {

// Empty, or why this machine cannot run the rest.
std::string missing() {
  const Result<GpuInfo> gpu = open_gpu(0);
  return gpu.ok() ? std::string() : gpu.error().message;
}

TEST(Gpu, IsFoundOrTheReasonIsOneSentence) {
  const Result<GpuInfo> gpu = open_gpu(0);
  if (!gpu.ok()) {
    std::cout << "no GPU here: " << gpu.error().message << std::endl;
    EXPECT_EQ(gpu.error().code, ErrorCode::kInvalidArgument);
    const std::string& why = gpu.error().message;
    EXPECT_TRUE(why.find("use cpu") != std::string::npos || why.find("install") != std::string::npos) << why;
    return;
  }
  std::cout << gpu->name << ", " << gpu->major << "." << gpu->minor << ", " << (gpu->memory_bytes >> 20) << " MiB, driver "
            << gpu->driver << std::endl;
  EXPECT_GE(gpu->major, 8);
  EXPECT_GT(gpu->multiprocessors, 0);
  EXPECT_GT(gpu->free_bytes, 0U);
  EXPECT_LE(gpu->free_bytes, gpu->memory_bytes);
  EXPECT_EQ(open_gpu(-1).error().message, "GPU -1 does not exist; there are 1, counted from 0");
}

TEST(Gpu, MemoryStartsAtZeroAndIsRefusedBeforeItIsTaken) {
  if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
  Result<GpuStream> stream = GpuStream::create();
  ASSERT_TRUE(stream.ok());
  {
    Result<GpuArena> arena = GpuArena::create(1 << 20, "the test");
    ASSERT_TRUE(arena.ok());
    std::byte* first = arena->allocate(1);
    std::byte* second = arena->allocate(1);
    EXPECT_EQ(second - first, static_cast<std::ptrdiff_t>(kGpuAlignment));
    const Tensor t = arena->tensor(DType::kF32, {100, 3});
    std::vector<float> values(300, 1.0f);
    stream->to_host(values.data(), t.data, 1200);
    stream->wait("reading");
    EXPECT_EQ(values, std::vector<float>(300, 0.0f));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    stream->to_gpu(t.data, values.data(), 1200);
    std::vector<float> back(300);
    stream->to_host(back.data(), t.data, 1200);
    stream->fill_zero(t.data, 400);
    std::vector<float> later(300);
    stream->to_host(later.data(), t.data, 1200);
    stream->wait("copying");
    EXPECT_EQ(back, values);
    EXPECT_EQ(later[99], 0.0f);
    EXPECT_EQ(later[100], 100.0f);
  }
  const size_t before = open_gpu(0)->free_bytes;
  const Result<GpuArena> huge = GpuArena::create(size_t{1} << 50, "the cache");
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(huge.error().message.rfind("the cache needs 1048576.00 GiB, ", 0), 0U) << huge.error().message;
  EXPECT_EQ(open_gpu(0)->free_bytes, before);
}

TEST(Gpu, ClearingIsOverBeforeAnyStreamWrites) {
  if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
  Result<GpuStream> stream = GpuStream::create();
  ASSERT_TRUE(stream.ok());
  constexpr size_t kBytes = size_t{1} << 30;  // clearing takes longer than the copies
  for (int round = 0; round < 5; ++round) {
    Result<GpuArena> arena = GpuArena::create(kBytes, "the test");
    if (!arena.ok()) GTEST_SKIP() << arena.error().message;
    std::byte* const last = arena->data() + kBytes - sizeof(uint64_t);
    const uint64_t value = 0x0123456789abcdefu;
    stream->to_gpu(last, &value, sizeof(value));
    stream->wait("writing");
    wait_for_gpu("clearing");
    uint64_t back = 0;
    stream->to_host(&back, last, sizeof(back));
    stream->wait("reading");
    ASSERT_EQ(back, value);
  }
}

TEST(Gpu, PinnedMemoryIsCopiedWhenTheStreamComesToIt) {
  if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
  Result<GpuStream> stream = GpuStream::create();
  Result<PinnedMemory> pinned = PinnedMemory::create(1 << 20, "the test");
  Result<GpuArena> arena = GpuArena::create(1 << 20, "the test");
  ASSERT_TRUE(stream.ok() && pinned.ok() && arena.ok());
  std::byte* const device = arena->allocate(1 << 20);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < pinned->bytes(); ++i) pinned->data()[i] = static_cast<std::byte>(i + static_cast<size_t>(round));
    stream->to_gpu(device, pinned->data(), pinned->bytes());
    std::vector<std::byte> back(pinned->bytes());
    stream->to_host(back.data(), device, back.size());
    stream->wait("copying");
    EXPECT_TRUE(std::equal(back.begin(), back.end(), pinned->data()));
  }
}

TEST(GpuFault, NamesOperationAndStepAndEndsWithStatusOne) {
  EXPECT_EXIT(gpu_fault("mla", "an illegal memory access was encountered", "cudaErrorIllegalAddress"),
              ::testing::ExitedWithCode(1), "the GPU failed at mla outside of a step: an illegal memory access .*IllegalAddress");
  EXPECT_EXIT(
      {
        set_gpu_step(7);
        gpu_fault("kda", "invalid configuration argument", "cudaErrorInvalidConfiguration");
      },
      ::testing::ExitedWithCode(1), "the GPU failed at kda in step 7: invalid configuration");
}

}  // namespace
}  // namespace perigee::tensor
