#pragma once
// A Hugging Face folder or a checkpoint as a model that can be run on this machine: what generate and logprobs stand
// on.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/arena.hpp"
#include "device/device.hpp"
#include "hf/config_json.hpp"
#include "kernels/workspace.hpp"
#include "models/models.hpp"
#include "parallel/communicator.hpp"
#include "text/tokenizer.hpp"
#include "train/checkpoint_model.hpp"

namespace llmtrain {

class LoadedModel {
 public:
  /// Reads config.json, the tokenizer where there is one, and the headers of the weights; of a checkpoint, the deck and
  /// the tokenizer in it, and verifies every byte. Warns on stderr of tokens that the model has no rows for. UserError.
  LoadedModel(const std::string& folder, DType compute);

  const ModelConfig& config() const { return config_.model; }
  const TokenIds& ids() const { return config_.ids; }
  /// Null: the folder has none.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  /// UserError(missing_input) that says so.
  const Tokenizer& required_tokenizer() const;
  Model& model() { return *model_; }
  DType compute() const { return compute_; }

  /// Plans the parameters and what `plan` adds, allocates, and reads the weights. A second time, in place of the first:
  /// with another plan.
  void start(const std::function<void(Arena&)>& plan);
  /// After start().
  Context context();
  /// Rows of the embedding that are tokens: no id may be higher.
  int64_t vocabulary() const;
  /// With the rows that are tokens.
  DecoderShape shape() const { return decoder_shape(config_.model, vocabulary()); }
  Communicator& communicator() { return *communicator_; }
  ParamStore& params() { return *params_; }
  /// Null: a Hugging Face folder.
  const CheckpointModel* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }
  Arena& arena() { return arena_; }
  Stream& stream() { return *stream_; }

 private:
  void read_folder();

  std::string folder_;
  DType compute_;
  HfConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<CheckpointModel> checkpoint_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParamStore> params_;
  Arena arena_;
  std::optional<DeviceBuffer> memory_;
  std::optional<WorkspaceScope> workspace_;
};

/// Says on stderr which tokens have no row in a model's embedding.
void warn_of_missing_rows(const Tokenizer& tokenizer, int64_t rows, const std::string& path);

/// "fp32", "bf16" or "fp16", as the option --compute says it.
DType parse_compute_option(const std::string& text);

}  // namespace llmtrain
