#pragma once
// Makes a mixture of experts of a dense model (sparse upcycling, Komatsuzaki et al. 2022, arXiv:2212.05055).

#include <cstdint>
#include <string>
#include <vector>

#include "hf/export.hpp"

namespace llmtrain {

struct UpcycleOptions {
  int64_t experts = 8;    ///< of a layer, 2 to max_experts
  int64_t per_token = 2;  ///< 1 to experts, at most 1024
  uint64_t seed = 42;     ///< of the routers
};

/// Writes `source`, a llama, mistral or qwen3 folder, as a mixtral (the first two) or qwen3_moe one. Every expert is a
/// copy of its layer's MLP, bit for bit; a router's elements are normal(0, initializer_range) as a function of seed,
/// name and element. The weights of a token's experts sum to 1, so that the model begins as the dense one, up to
/// rounding. Other tensors and files are copied. Holds 16 MiB of weights at a time. Returns warnings for the user.
/// Throws UserError(bad_content) for another family, a quantised folder, and a model that the new family cannot
/// describe; cannot_create as ModelFolderWriter.
std::vector<std::string> upcycle_model(const std::string& source, ExportOptions options, const UpcycleOptions& upcycle);

}  // namespace llmtrain
