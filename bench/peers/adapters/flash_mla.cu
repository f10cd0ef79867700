// FlashMLA as a peer: dense decode over BF16 latents in pages of 64 on Hopper. Needs its sources and CUTLASS's headers, both fetched
// elsewhere; README.md has the commands. Its plan of the work (metadata) is made once, as servers make it once a step for all layers.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/peers/peer.h"
#include "params.h"
#include "sm90/decode/dense/splitkv_mla.h"
#include "smxx/decode/combine/combine.h"
#include "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.h"

namespace {

constexpr int kWidth = 576, kValues = 512, kPage = 64;
constexpr int kFixedBlocks = 5;  // what the peer's own interface gives its planner

struct Dense {
  DenseAttnDecodeParams attend = {};
  CombineParams join = {};
  char* pool = nullptr;
  int64_t copies = 1, distance = 0;
  void* memory[5] = {};
};

void* allocate(Dense& d, int which, size_t bytes) { return cudaMalloc(&d.memory[which], bytes) == cudaSuccess ? d.memory[which] : nullptr; }

}  // namespace

extern "C" const char* perigee_peer_name() { return "FlashMLA"; }

extern "C" const char* perigee_peer_open(const PerigeePeerProblem* p, void** state) {
  if (std::strcmp(p->op, "mla_dense") != 0) return "only dense decode over BF16 latents";
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const int batch = static_cast<int>(p->sizes[0]), heads = static_cast<int>(p->sizes[1]);
  const int pages = static_cast<int>((p->sizes[2] + kPage - 1) / kPage);  // of a sequence
  const int parts = std::max(processors / ((heads + 63) / 64), 1);
  const size_t splits = static_cast<size_t>(batch + parts), row = static_cast<size_t>(heads) * sizeof(float);
  auto* const d = new Dense;
  auto* const plan = static_cast<DecodingSchedMeta*>(allocate(*d, 0, static_cast<size_t>(parts) * sizeof(DecodingSchedMeta)));
  auto* const counts = static_cast<int*>(allocate(*d, 1, static_cast<size_t>(batch + 1) * sizeof(int)));
  auto* const lse = static_cast<float*>(allocate(*d, 2, static_cast<size_t>(batch) * row));
  auto* const lse_parts = static_cast<float*>(allocate(*d, 3, splits * row));
  auto* const out_parts = static_cast<float*>(allocate(*d, 4, splits * row * kValues));
  if (plan == nullptr || counts == nullptr || lse == nullptr || lse_parts == nullptr || out_parts == nullptr) {
    perigee_peer_close(d);
    return "the GPU's memory is too small for the peer's partial results";
  }
  auto* const stream = static_cast<cudaStream_t>(p->stream);
  auto* const lengths = static_cast<int*>(const_cast<void*>(p->inputs[3]));
  GetDecodeSchedMetaParams planner = {};
  planner.b = batch;
  planner.s_q = 1;
  planner.block_size_n = kPage;
  planner.fixed_overhead_num_blocks = kFixedBlocks;
  planner.topk = planner.extra_topk = -1;
  planner.seqlens_k_ptr = lengths;
  planner.tile_scheduler_metadata_ptr = plan;
  planner.num_splits_ptr = counts;
  planner.num_sm_parts = parts;
  planner.stream = stream;
  smxx::decode::run_get_decoding_sched_meta_kernel(planner);

  DenseAttnDecodeParams& a = d->attend;
  a.b = batch;
  a.s_q = 1;
  a.h_q = a.q_seq_per_hk = a.q_head_per_hk = heads;
  a.h_k = 1;
  a.d = kWidth;
  a.d_v = kValues;
  a.num_blocks = batch * pages;
  a.is_causal = false;
  a.scale_softmax = static_cast<float>(p->scale);
  a.scale_softmax_log2 = static_cast<float>(p->scale * M_LOG2E);
  a.q_ptr = const_cast<void*>(p->inputs[0]);
  a.o_ptr = p->outputs[0];
  a.softmax_lse_ptr = lse;
  a.q_row_stride = a.q_head_stride = kWidth;
  a.q_batch_stride = static_cast<int64_t>(heads) * kWidth;
  a.k_row_stride = a.k_head_stride = kWidth;
  a.k_batch_stride = kPage * kWidth;
  a.o_row_stride = kValues;
  a.o_batch_stride = a.o_head_stride = static_cast<int64_t>(heads) * kValues;
  a.block_table = static_cast<int*>(const_cast<void*>(p->inputs[2]));
  a.block_table_batch_stride = pages;
  a.page_block_size = kPage;
  a.seqlens_k_ptr = lengths;
  a.tile_scheduler_metadata_ptr = plan;
  a.num_sm_parts = parts;
  a.num_splits_ptr = counts;
  a.total_num_splits = static_cast<int>(splits);
  a.softmax_lseaccum_ptr = lse_parts;
  a.oaccum_ptr = out_parts;
  a.stream = stream;

  CombineParams& c = d->join;
  c.b = batch;
  c.s_q = 1;
  c.h_q = heads;
  c.d_v = kValues;
  c.lse = lse;
  c.out = p->outputs[0];
  c.stride_lse_b = c.stride_lse_s_q = c.stride_lse_accum_split = c.stride_lse_accum_s_q = heads;
  c.stride_o_b = c.stride_o_s_q = c.stride_o_accum_split = c.stride_o_accum_s_q = heads * kValues;
  c.stride_o_h_q = c.stride_o_accum_h_q = kValues;
  c.lse_accum = lse_parts;
  c.o_accum = out_parts;
  c.tile_scheduler_metadata_ptr = plan;
  c.num_splits_ptr = counts;
  c.num_sm_parts = parts;
  c.stream = stream;

  d->pool = static_cast<char*>(const_cast<void*>(p->inputs[1]));
  d->copies = p->sizes[3];
  d->distance = p->sizes[4];
  *state = d;
  return nullptr;
}

extern "C" void perigee_peer_run(void* state, int64_t turn) {
  Dense& d = *static_cast<Dense*>(state);
  d.attend.k_ptr = d.pool + turn % d.copies * d.distance;
  sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(d.attend);
  smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(d.join);
}

extern "C" void perigee_peer_close(void* state) {
  auto* const d = static_cast<Dense*>(state);
  for (void* m : d->memory) cudaFree(m);
  delete d;
}
