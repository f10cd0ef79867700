// What    One line of the table of operations: what to run, on the CPU or on a GPU, and what it costs by the book.
// Owner   bench. ops_*.cc return the cases of one family of operations; table.cc lists these functions.
// Threads Cases run one after the other.
// Errors  None.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/ops/operands.h"

namespace perigee::bench {

struct Prepared {
  // Launches the operation once. A run takes other weights, pages or states than the one before, from more memory than caches
  // hold, as the layers of a model do.
  std::function<void()> run;
  // What the first run is to be known by; dense.
  std::vector<Tensor> outputs;
};

struct BenchCase {
  std::string op;
  std::string name;
  double bytes = 0;  // that must be read and written once
  double flops = 0;  // a multiply-add counts as two
  // Allocates and fills the operands where the device computes. They live as long as `operands`.
  std::function<Prepared(Operands& operands)> prepare;
};

// The cases for a device: layouts and types, hence bytes, are its own.
std::vector<BenchCase> dense_bench(tensor::Device device);      // gemm
std::vector<BenchCase> moe_bench(tensor::Device device);        // moe_gemm, moe_route, moe_permute, moe_combine
std::vector<BenchCase> attention_bench(tensor::Device device);  // mla, index_score, topk, page_io
std::vector<BenchCase> kda_bench(tensor::Device device);        // kda, conv1d
std::vector<BenchCase> rows_bench(tensor::Device device);       // norm, act, attn_res, embed, copy
std::vector<BenchCase> sample_bench(tensor::Device device);

}  // namespace perigee::bench
