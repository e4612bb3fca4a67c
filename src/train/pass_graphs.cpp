#include "train/pass_graphs.hpp"

#include <fmt/format.h>

#include "core/profile.hpp"
#include "models/models.hpp"

namespace llmtrain {

std::string PassGraphs::refusal(bool wanted, const ModelConfig& model, const ParamStore& params) {
  if (!wanted) return "parallel.cuda_graphs is off";
  if (!params.passes_repeat()) return "the passes communicate weights or gradients";
  // The step is an argument of kernels that draw random numbers.
  if (model.dropout > 0 || model.attention_dropout > 0) return "dropout draws different numbers in every step";
  // The host copies rope's frequencies in every pass.
  if (model.positions == ModelConfig::Positions::rope && make_rope(model).by_length()) {
    return "the frequencies of rope depend on the lengths";
  }
  return {};
}

Graph* PassGraphs::find(const Batch& batch) {
  if (!used_) return nullptr;
  const std::optional<uint64_t> place = params_.pass_key();
  if (!place) return nullptr;
  if (Recorder::current() != nullptr) return nullptr;  // a profile needs every kernel separately
  const Shape shape{batch.tokens, batch.segment_count, batch.longest_segment, *place};
  const auto found = graphs_.find(shape);
  if (found != graphs_.end()) return &found->second;
  if (graphs_.size() < max_shapes) graphs_.try_emplace(shape);
  return nullptr;
}

void PassGraphs::record(Graph& graph, Stream& stream, const std::function<void()>& passes) {
  try {
    graph.record(stream, passes);
  } catch (const Error& error) {
    throw Error(fmt::format("{}, while passes were recorded; set parallel.cuda_graphs = false to run without graphs",
                            error.what()));
  }
  ++recorded_;
}

}  // namespace llmtrain
