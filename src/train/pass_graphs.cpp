#include "train/pass_graphs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/number_text.hpp"
#include "core/profile.hpp"
#include "models/models.hpp"
#include "models/rope/rope_frequencies.hpp"

namespace llmtrain {

namespace {

std::string text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

}  // namespace

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
  if (!used_) return nullptr;
  const std::optional<uint64_t> place = params_.pass_key();
  if (!place) return nullptr;
  if (Recorder::current() != nullptr) return nullptr;  // a profile needs every kernel separately
  const Shape shape{batch.tokens, batch.segment_count, batch.longest_segment, *place};
  const auto found = graphs_.find(shape);
  if (found != graphs_.end()) return found->second.recorded() || limit_.empty() ? &found->second : nullptr;
  if (graphs_.size() < max_shapes) graphs_.try_emplace(shape);
  return nullptr;
}

bool PassGraphs::record(Graph& graph, Stream& stream, const std::function<void()>& passes) {
  // The rest of what a plan leaves free is for kernels that are loaded later, and for scratch.
  const int64_t available = device_memory().available, floor = device_reserve_bytes() / 2;
  if (available - largest_ < floor) {
    limit_ = fmt::format("{} of GPU memory are free, the largest graph took {}, and {} must stay free", text(available),
                         text(largest_), text(floor));
    return false;
  }
  try {
    graph.record(stream, passes);
  } catch (const Error& error) {
    throw Error(fmt::format("{}, while passes were recorded; set parallel.cuda_graphs = false to run without graphs",
                            error.what()));
  }
  if (!graph.recorded()) {
    limit_ = fmt::format("the driver has no memory for one more, with {} free", text(available));
    params_.repeat_micro_batch();
    return false;
  }
  largest_ = std::max(largest_, available - device_memory().available);
  ++recorded_;
  return true;
}

}  // namespace llmtrain
