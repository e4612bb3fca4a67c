#pragma once
// Embedding and head that lie in an adapter's folder beside the adapters, whole (PEFT's save_embedding_layers, which
// PEFT sets by itself where the vocabulary has another size than the model's, or where they have adapters). They take
// the place of the model's own.

#include <string>
#include <vector>

#include "hf/weights/match_weights.hpp"
#include "models/lora.hpp"

namespace llmtrain {

struct FoundTables {
  std::vector<std::string> modules;  ///< for LoraConfig::saved_embeddings
  int64_t rows = 0;                  ///< tokens of the model that the adapter was trained on

  /// Lets a model with this adapter have them.
  void use(LoraConfig& lora, ModelConfig& model) const {
    lora.saved_embeddings = modules;
    model.vocab_size = rows;
  }
};

/// Reads the headers of the adapter's file, and compares its tables with those of the model's folder: equal ones are
/// left out. `shape` is the model's own; `part` is what the adapter chooses in it. An empty `model` means no folder.
/// For one rank. Throws UserError(bad_content) for tables that fit neither the model nor each other.
FoundTables find_saved_tables(const std::string& adapter, const LoraPart& part, const DecoderShape& shape,
                              const std::string& model);

/// Reads the header of the adapter's weights.
WeightIndex read_saved_tables(const std::string& adapter);

/// Finds the tables of shape.saved_tables among the adapter's tensors. Throws UserError(bad_content).
WeightMatch match_saved_tables(const DecoderShape& shape, const std::vector<UnitSpec>& units, const WeightIndex& index);

}  // namespace llmtrain
