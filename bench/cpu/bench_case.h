// What    One line of the table of operations: what to run and what it costs by the book.
// Owner   bench. An operation's file ops_<name>.cc returns its cases; bench_ops.cc lists these files.
// Threads Cases run one after the other.
// Errors  None.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/context.h"

namespace perigee::bench {

struct BenchCase {
  std::string op;
  std::string name;
  double bytes = 0;  // that must be read and written once
  double flops = 0;  // a multiply-add counts as two
  // Allocates and fills the operands and returns one run. Runs should walk over enough memory that weights come from
  // memory, as they do in a model, and not from the last level cache.
  std::function<std::function<void()>(const ops::Context&)> prepare;
};

std::vector<BenchCase> gemm_bench();
std::vector<BenchCase> moe_gemm_bench();
std::vector<BenchCase> moe_route_bench();
std::vector<BenchCase> moe_combine_bench();
std::vector<BenchCase> attention_bench();  // mla, index_score, topk
std::vector<BenchCase> kda_bench();

}  // namespace perigee::bench
