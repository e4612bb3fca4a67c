#include "core/error.hpp"
#include "kernels/attention_kept.hpp"

namespace llmtrain {

namespace {

[[noreturn]] void refuse() {
  throw UserError(ExitCode::no_device, "generate.cache: a GPU keeps every key: choose full, or the host's build");
}

}  // namespace

void keep_prompt_keys(const KeptKeys&, const Tensor&, const Tensor&, const Batch&, const AttentionShape&, Stream&) {
  refuse();
}

void store_kept_keys(const KeptKeys&, const Tensor&, const Tensor&, const Batch&, const AttentionShape&, Stream&) {
  refuse();
}

void weigh_kept_keys(const KeptKeys&, const Tensor&, const Tensor&, const Batch&, const AttentionShape&, Stream&) {
  refuse();
}

}  // namespace llmtrain
