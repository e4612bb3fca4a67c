#include <algorithm>

#include "core/activity.hpp"
#include "core/philox.hpp"
#include "data/data_stream.hpp"
#include "generate/sampler.hpp"

namespace llmtrain {

namespace {

/// The window as one segment without targets. Row 0 of the statistics is never asked for.
HostBatch batch_of(std::span<const int32_t> window) {
  HostBatch host;
  const size_t n = window.size();
  host.ids.assign(window.begin(), window.end());
  host.targets.assign(n, ignore_target);
  host.loss_weights.assign(n, 0.0f);
  host.sequence_ids.assign(n, 0);
  host.positions.resize(n);
  for (size_t i = 0; i < n; ++i) host.positions[i] = static_cast<int32_t>(i);
  host.sequence_offsets = host.positions;
  host.segments = {0, static_cast<int32_t>(n)};
  return host;
}

}  // namespace

std::vector<int32_t> generate_tokens(Model& model, Context& ctx, BatchBuffers& buffers, const Tensor& logits,
                                     std::span<const int32_t> prompt, const GenerationOptions& options) {
  LLMTRAIN_CHECK(!prompt.empty(), "a continuation needs at least one token");
  LLMTRAIN_CHECK(options.context > 0, "the context is empty");
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  std::vector<float> row(static_cast<size_t>(logits.numel()));
  for (int64_t i = 0; i < options.new_tokens; ++i) {
    if (options.interrupted && options.interrupted()) break;
    note_progress();
    const auto length = std::min<size_t>(text.size(), static_cast<size_t>(options.context));
    const std::span<const int32_t> window(text.data() + text.size() - length, length);
    const Batch batch = buffers.upload(batch_of(window), ctx.stream);
    model.forward(ctx, &batch);
    model.logits(ctx, &batch, static_cast<int64_t>(length) - 1, logits);
    copy_to_host(row.data(), logits.data, logits.bytes(), ctx.stream);
    ctx.stream.synchronize();
    const int32_t token = sample_token({row.data(), static_cast<size_t>(options.vocabulary)}, options.sampling,
                                       random_bits(options.key, 0, static_cast<uint64_t>(i)));
    if (token == options.eos) break;
    text.push_back(token);
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace llmtrain
