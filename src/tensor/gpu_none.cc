// Builds without CUDA.
#include <utility>

#include "tensor/gpu.h"

namespace perigee::tensor {
namespace {

Error none() { return invalid_argument("this build has no CUDA backend; build the preset cuda, or use cpu"); }

}  // namespace

bool gpu_built() { return false; }
Result<GpuInfo> open_gpu(int) { return none(); }

Result<GpuArena> GpuArena::create(size_t, const std::string&) { return none(); }
GpuArena::GpuArena(GpuArena&&) noexcept {}
GpuArena& GpuArena::operator=(GpuArena&&) noexcept { return *this; }
GpuArena::~GpuArena() = default;
std::byte* GpuArena::allocate(size_t) { CHECK(false); }
Tensor GpuArena::tensor(DType, std::initializer_list<int64_t>) { CHECK(false); }

Result<PinnedMemory> PinnedMemory::create(size_t, const std::string&) { return none(); }
PinnedMemory::PinnedMemory(PinnedMemory&&) noexcept {}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&&) noexcept { return *this; }
PinnedMemory::~PinnedMemory() = default;

Result<GpuStream> GpuStream::create() { return none(); }
GpuStream::GpuStream(GpuStream&&) noexcept {}
GpuStream& GpuStream::operator=(GpuStream&&) noexcept { return *this; }
GpuStream::~GpuStream() = default;
void GpuStream::to_gpu(void*, const void*, size_t) { CHECK(false); }
void GpuStream::to_host(void*, const void*, size_t) { CHECK(false); }
void GpuStream::fill_zero(void*, size_t) { CHECK(false); }
void GpuStream::wait(const char*) { CHECK(false); }
GpuGraph GpuGraph::record(void*, const std::function<void()>&) { CHECK(false); }
GpuGraph::GpuGraph(GpuGraph&&) noexcept {}
GpuGraph& GpuGraph::operator=(GpuGraph&&) noexcept { return *this; }
GpuGraph::~GpuGraph() = default;
void GpuGraph::launch(void*) const { CHECK(false); }

void gpu_copy(void*, void*, const void*, size_t) { CHECK(false); }
void gpu_zero(void*, void*, size_t) { CHECK(false); }
void gpu_wait(void*, const char*) { CHECK(false); }
void wait_for_gpu(const char*) { CHECK(false); }

}  // namespace perigee::tensor
