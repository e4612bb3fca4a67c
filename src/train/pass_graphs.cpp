#include "train/pass_graphs.hpp"

#include <fmt/format.h>

#include <optional>

#include "core/profile.hpp"
#include "models/models.hpp"
#include "models/rope/rope_frequencies.hpp"

namespace llmtrain {

std::string PassGraphs::refusal(bool wanted, const ModelConfig& model, const ParamStore& params) {
  if (!wanted) return "parallel.cuda_graphs is off";
  if (!params.reducer().repeats()) return "the passes communicate weights or gradients";
  // The host copies rope's frequencies in every pass.
  if (model.positions == ModelConfig::Positions::rope && make_rope(model).by_length()) {
    return "the frequencies of rope depend on the lengths";
  }
  return {};
}

Graph* PassGraphs::find(const Batch& batch) {
  const std::optional<uint64_t> place = used_ ? params_.pass_key() : std::nullopt;
  if (!place || Recorder::current() != nullptr) return nullptr;  // a profile needs every kernel separately
  return pool_.find({batch.tokens, batch.segment_count, batch.longest_segment, static_cast<int64_t>(*place)});
}

bool PassGraphs::record(Graph& graph, Stream& stream, const std::function<void()>& passes) {
  try {
    return pool_.record(graph, stream, passes, [this] { params_.repeat_micro_batch(); });
  } catch (const Error& error) {
    throw Error(fmt::format("{}, while passes were recorded; set parallel.cuda_graphs = false to run without graphs",
                            error.what()));
  }
}

}  // namespace llmtrain
