#pragma once
// Writes a model as a Hugging Face folder that Transformers loads.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hf/config/config_json.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/slice_writer.hpp"
#include "models/decoder.hpp"
#include "params/param_store.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct ExportOptions {
  std::string output;
  bool overwrite = false;
  std::optional<StoredType> type;      ///< type of the weights; default: fp32 for a store, unchanged for a folder
  int64_t file_bytes = 5'000'000'000;  ///< maximum size of a file of weights
  /// Result of model_texts() for the folder that the model was loaded from. It is copied, except for the tokenizer's
  /// files if save_tokenizer is set. Empty: config.json and generation_config.json are created.
  std::map<std::string, std::string> texts;
  TokenIds ids;      ///< for the created files
  int64_t pad = -1;  ///< padding token of the tokenizer, for a model that scores
  std::function<void(const std::string& folder)> save_tokenizer;
  /// Further files of the folder that the tokenizer came from.
  std::map<std::string, std::string> companion_files = {};
  ChatExport chat = {};  ///< of a run on conversations: its template, and ids that are added to the model's EOS ids
};

/// Returns all tokenizer files and chat templates of a folder, by name.
std::map<std::string, std::string> tokenizer_texts(const std::string& folder);

/// Lets the export have this tokenizer: nothing to do where its files are those in options.texts, however its folder
/// was named; else they take the place of those there. `path` is what the deck names, a file or a folder, or empty for
/// a tokenizer of the run's own: its further files come along where it is still that of the tokenizer, to which the run
/// added the tokens `added`. Where it has no chat template the model's stays. Returns which files could not come along,
/// as a warning, or "".
std::string carry_tokenizer(ExportOptions& options, const Tokenizer& tokenizer, const std::string& path,
                            const std::vector<std::string>& added = {});

/// Returns config.json, generation_config.json and the tokenizer's files of a Hugging Face folder, by name.
std::map<std::string, std::string> model_texts(const std::string& folder);

/// The same, and the folder's other files but weights of any format and the configuration of an adapter, which
/// Transformers would load.
std::map<std::string, std::string> other_files_of(const std::string& folder);

/// Writes the model that `shape` describes: with rows for its tokens, without padding rows. Collective; rank 0 writes
/// in blocks and holds no more than 16 MiB, except for a whole matrix that is stored transposed. Throws UserError(deck)
/// if no config.json describes the model: see hf_config_obstacle.
void export_model(const ExportOptions& options, const DecoderShape& shape, const std::vector<UnitSpec>& units,
                  const GatherWeights& gather, Communicator& communicator);

/// Returns the warning that a quantised folder is written in 16 or 32 bits.
std::string dequantized_note(const std::string& folder);

/// One process: rewrites a Hugging Face folder with other types or file sizes; its texts are copied. Returns warnings
/// for the user.
std::vector<std::string> convert_model(const std::string& source, ExportOptions options);

/// Plan of the folder, without its tensors. Unless they are `quantized`, config.json says nothing of quantisation.
ModelFolderPlan folder_plan(const ExportOptions& options, const ModelConfig& model, StoredType type,
                            bool quantized = false);

/// Parses "bf16" as BF16; fp32, bf16 and fp16 are known.
std::optional<StoredType> weight_type_of(std::string_view name);

}  // namespace llmtrain
