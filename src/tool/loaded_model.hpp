#pragma once
// Loads a Hugging Face folder or a checkpoint as a model to run on this machine, for generate and logprobs.

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/arena.hpp"
#include "device/device.hpp"
#include "hf/config/config_json.hpp"
#include "kernels/workspace.hpp"
#include "models/models.hpp"
#include "parallel/communicator.hpp"
#include "roles/model_set.hpp"
#include "text/tokenizer.hpp"
#include "train/checkpoint_model.hpp"

namespace llmtrain {

/// The options --quantize and --double of a subcommand.
struct QuantizeOptions {
  std::string type;
  bool double_quantization = false;

  void add_to(CLI::App& app);
  /// Refuses a command line with an unknown type.
  QuantizationConfig config() const;
};

/// Options of the subcommands that run a model.
struct ModelOptions {
  std::string model;
  std::string adapter;  ///< PEFT folder; may be empty
  QuantizeOptions quantize;
  std::string compute = "fp32";
  bool estimate = false;
  bool json = false;  ///< of the estimate

  void add_to(CLI::App& app);
};

class LoadedModel {
 public:
  /// Reads config.json, the tokenizer if there is one, and the headers of the weights, which an estimate does not need;
  /// for a checkpoint, its deck and tokenizer, and verifies every byte. Warns on stderr about tokens without an
  /// embedding row. The matrices are stored as the options say, or else as in the checkpoint's run or the folder's
  /// files. Throws UserError.
  explicit LoadedModel(const ModelOptions& options);

  const ModelConfig& config() const { return config_.model; }
  const TokenIds& ids() const { return config_.ids; }
  /// Null if the folder has no tokenizer.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  /// Throws UserError(missing_input) if there is none.
  const Tokenizer& required_tokenizer() const;
  /// Throws UserError(bad_content) if the model scores texts instead of predicting tokens.
  void require_logits() const;
  Model& model() { return role_->model(); }
  DType compute() const { return compute_; }

  /// Plans the parameters and the allocations of `plan`, allocates, and reads the weights. A second call replaces the
  /// plan of the first.
  void start(const std::function<void(Arena&)>& plan);
  /// Prints the memory of start(plan) by category, for --estimate. It allocates nothing; start() must not follow.
  void print_estimate(const std::function<void(Arena&)>& plan);
  /// Available after start().
  Context context();
  /// Embedding rows that are tokens: every id must be below this number.
  int64_t vocabulary() const;
  /// Model shape with these rows.
  DecoderShape shape() const;
  /// Adapters of the model, from the checkpoint's run or a folder.
  const std::optional<LoraConfig>& lora() const { return lora_; }
  RoleModel& role() { return *role_; }
  Communicator& communicator() { return *communicator_; }
  ParamStore& params() { return role_->params(); }
  /// Null for a Hugging Face folder.
  const CheckpointModel* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }
  Arena& arena() { return arena_; }
  Stream& stream() { return *stream_; }

 private:
  void read_folder();
  void read_adapter(const std::string& folder);
  void make_model();
  void make_plan(const std::function<void(Arena&)>& plan);

  std::string folder_;
  DType compute_;
  bool json_;  ///< format of an estimate
  HfConfig config_;
  std::optional<LoraConfig> lora_;
  bool new_head_ = false;  ///< see DecoderShape
  QuantizationConfig quantization_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<CheckpointModel> checkpoint_;
  std::optional<RoleModel> role_;
  bool started_ = false;
  Arena arena_;
  std::optional<DeviceBuffer> memory_;
  std::optional<WorkspaceScope> workspace_;
};

/// Prints on stderr which tokens have no row in the model's embedding.
void warn_of_missing_rows(const Tokenizer& tokenizer, int64_t rows, const std::string& path);

}  // namespace llmtrain
