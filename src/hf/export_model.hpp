#pragma once
// A model as a Hugging Face folder that Transformers loads.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "hf/config_json.hpp"
#include "hf/model_folder.hpp"
#include "models/decoder.hpp"
#include "params/param_store.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct ExportOptions {
  std::string output;
  bool overwrite = false;
  std::optional<StoredType> type;      ///< of the weights; of a store fp32 unless given, of a folder what it has
  int64_t file_bytes = 5'000'000'000;  ///< of weights, before another file is begun
  /// model_texts() of the folder that the model was loaded from: taken over, but for the tokenizer's where
  /// save_tokenizer is given. Empty: config.json and generation_config.json are made anew.
  std::map<std::string, std::string> texts;
  TokenIds ids;  ///< for those
  std::function<void(const std::string& folder)> save_tokenizer;
  std::map<std::string, std::string> beside_tokenizer = {};  ///< further files of the folder that it came from
};

/// Every file of a tokenizer and every chat template in a folder, by name.
std::map<std::string, std::string> tokenizer_texts(const std::string& folder);

/// Lets the export have this tokenizer: nothing to do where its files are those in options.texts, however its folder
/// was named; else they take the place of those there. `path` is what the deck names, a file or a folder: its further
/// files come along where it is still that of the tokenizer. Where it has no chat template the model's stays. Returns
/// which files could not come along, as a warning, or "".
std::string carry_tokenizer(ExportOptions& options, const Tokenizer& tokenizer, const std::string& path);

/// config.json, generation_config.json and the tokenizer's files of a Hugging Face folder, by name.
std::map<std::string, std::string> model_texts(const std::string& folder);

/// Where weights come from: elements [begin, end) of a unit, fp32, on all ranks that call it.
using GatherWeights = std::function<void(int unit, int64_t begin, int64_t end, float* out)>;

/// The model that `shape` describes: with rows for its tokens, without those that only pad. Collective; rank 0 writes,
/// piece by piece, and holds no more than 16 MiB, but the whole of a matrix that is stored transposed. UserError(deck)
/// when no config.json describes the model: see hf_config_obstacle.
void export_model(const ExportOptions& options, const DecoderShape& shape, const std::vector<UnitSpec>& units,
                  const GatherWeights& gather, Communicator& communicator);
void export_model(const ExportOptions& options, const DecoderShape& shape, ParamStore& params,
                  Communicator& communicator);

/// One process: a Hugging Face folder -> another, with other types or sizes of files; its texts are taken over.
/// Gives warnings for the user.
std::vector<std::string> convert_model(const std::string& source, ExportOptions options);

/// "bf16" -> BF16; fp32, bf16 and fp16 are known.
std::optional<StoredType> weight_type_of(std::string_view name);

}  // namespace llmtrain
