// cuBLAS as a peer: BF16 products with FP32 sums. Needs libcublas at run time and nothing of CUDA to build:
//   g++ -O2 -shared -fPIC -std=c++20 -I REPOSITORY -o cublas_peer.so bench/peers/adapters/cublas.cc -ldl
// The library is looked for by its usual names on the loader's path.
#include <dlfcn.h>

#include <cstring>
#include <initializer_list>

#include "bench/peers/peer.h"

namespace {

// Of cuBLAS' C interface what one call needs; the numbers are those of its documentation.
constexpr int kBf16 = 14, kF32 = 0, kComputeF32 = 68, kDefaultAlgorithm = -1, kPlain = 0, kTransposed = 1;
using Create = int (*)(void**);
using Destroy = int (*)(void*);
using SetStream = int (*)(void*, void*);
using SetWorkspace = int (*)(void*, void*, size_t);
using GemmEx = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*,
                       int, int, int, int);
using Malloc = int (*)(void**, size_t);
using Free = int (*)(void*);

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

struct Gemm {
  void* handle = nullptr;
  void* workspace = nullptr;
  GemmEx gemm = nullptr;
  Destroy destroy = nullptr;
  Free free = nullptr;
  int t = 0, n = 0, k = 0;
  int64_t copies = 1, distance = 0;
  const char* w = nullptr;
  const void* x = nullptr;
  void* out = nullptr;
};

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

}  // namespace

extern "C" const char* perigee_peer_name() { return "cuBLAS"; }

extern "C" const char* perigee_peer_open(const PerigeePeerProblem* p, void** state) {
  if (std::strcmp(p->op, "gemm") != 0) return "only products";
  void* const library = open_first({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
  if (library == nullptr) return "libcublas was not found on the loader's path (LD_LIBRARY_PATH)";
  const auto find = [&](const char* name) { return dlsym(library, name); };
  const auto create = reinterpret_cast<Create>(find("cublasCreate_v2"));
  const auto set_stream = reinterpret_cast<SetStream>(find("cublasSetStream_v2"));
  const auto set_workspace = reinterpret_cast<SetWorkspace>(find("cublasSetWorkspace_v2"));
  auto* const g = new Gemm;
  g->gemm = reinterpret_cast<GemmEx>(find("cublasGemmEx"));
  g->destroy = reinterpret_cast<Destroy>(find("cublasDestroy_v2"));
  if (create == nullptr || set_stream == nullptr || set_workspace == nullptr || g->gemm == nullptr || g->destroy == nullptr ||
      create(&g->handle) != 0 || set_stream(g->handle, p->stream) != 0) {
    delete g;
    return "libcublas refused";
  }
  // Work that is captured must not allocate: the library gets its memory beforehand.
  if (void* const runtime = open_first({"libcudart.so.13", "libcudart.so.12", "libcudart.so"})) {
    const auto allocate = reinterpret_cast<Malloc>(dlsym(runtime, "cudaMalloc"));
    g->free = reinterpret_cast<Free>(dlsym(runtime, "cudaFree"));
    if (allocate != nullptr && allocate(&g->workspace, kWorkspaceBytes) == 0) {
      set_workspace(g->handle, g->workspace, kWorkspaceBytes);
    }
  }
  g->t = static_cast<int>(p->sizes[0]);
  g->n = static_cast<int>(p->sizes[1]);
  g->k = static_cast<int>(p->sizes[2]);
  g->copies = p->sizes[3];
  g->distance = p->sizes[4];
  g->x = p->inputs[0];
  g->w = static_cast<const char*>(p->inputs[1]);
  g->out = p->outputs[0];
  *state = g;
  return nullptr;
}

// The library thinks in columns: its n x t result by columns is our t x n one by rows.
extern "C" void perigee_peer_run(void* state, int64_t turn) {
  const Gemm& g = *static_cast<const Gemm*>(state);
  const float one = 1, zero = 0;
  g.gemm(g.handle, kTransposed, kPlain, g.n, g.t, g.k, &one, g.w + turn % g.copies * g.distance, kBf16, g.k, g.x, kBf16, g.k, &zero,
         g.out, kBf16, g.n, kComputeF32, kDefaultAlgorithm);
}

extern "C" void perigee_peer_close(void* state) {
  auto* const g = static_cast<Gemm*>(state);
  g->destroy(g->handle);
  if (g->free != nullptr && g->workspace != nullptr) g->free(g->workspace);
  delete g;
}
