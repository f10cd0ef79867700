// What    Says which numbers an engine computes with: the checkpoint, the arithmetic, the device, the cache formats.
// Owner   engine. Requests that are recorded under equal identities give equal bits.
// Threads Pure functions.
// Errors  weights_digest() and identify() name the file that cannot be read.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/engine.h"

namespace perigee::engine {

// Names the arithmetic of docs/numerics.md. Its last number goes up with every change that can change a bit of a result.
constexpr const char* kArithmetic = "segments-1792/kda-16/attention-64/2";

// Checkpoints of at most this many tensor bytes are hashed whole.
constexpr uint64_t kWholeBytesMax = uint64_t{1} << 30;

struct ModelIdentity {
  std::string model;          // folder, as an absolute path; where it lies is no part of the identity
  std::string device;         // cpu, cuda or reference
  std::string latent_format;  // f64, bf16, fp8 or nvfp4
  std::string key_format;     // f64, bf16, fp8 or mxfp4
  std::string weights;        // weights_digest()
  std::string numerics;       // the device and kArithmetic

  bool operator==(const ModelIdentity&) const = default;
};

// SHA-256, in hex, over config.json's bytes (its epsilons and widths are part of the arithmetic) and then each shard in the
// order of file names: the name, then for each tensor its name, type, shape and place in the file, and its bytes. If all
// tensors together have more than `whole_bytes_max` bytes, a tensor of more than 64 KiB gives four pieces of 16 KiB instead:
// its beginning, its end and two at even distances between them. So a large checkpoint is told from another one, but not
// from one with a few bytes changed. Dummy weights have their seed in place of shards.
Result<std::string> weights_digest(const std::string& folder, const model::LoadOptions& load,
                                   uint64_t whole_bytes_max = kWholeBytesMax);

Result<ModelIdentity> identify(const Engine& engine);

// A sentence about the first part that differs; `what` says whose identity the first one is.
Status check_same(const ModelIdentity& recorded, const ModelIdentity& now, const std::string& what);

}  // namespace perigee::engine
