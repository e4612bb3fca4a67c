#pragma once
// What a model family is. A new one is a name in families.hpp and a file of that name with its FamilyEntry.

#include <memory>
#include <string_view>

#include "models/decoder.hpp"

namespace llmtrain {

/// Shape of a resolved config (vocab_size known); `tokens` is the tokenizer's vocabulary.
DecoderShape decoder_shape(const ModelConfig& config, int64_t tokens);

std::unique_ptr<Model> make_model(const ModelConfig& config, int64_t tokens);

/// Rotation of a config with rope.
Rope make_rope(const ModelConfig& config);

struct FamilyEntry {
  std::string_view doc;                   ///< what it is, for --help
  void (*defaults)(ModelConfig& config);  ///< sets every field that a deck may leave to the family; sizes are known
  void (*shape)(DecoderShape& shape);     ///< names, and what follows from the config alone
};

const FamilyEntry& family_entry(ModelConfig::Family family);

// One function per family, each in the file of its name.
#define LLMTRAIN_FAMILY_ENTRY(name) FamilyEntry family_##name();
LLMTRAIN_FAMILIES(LLMTRAIN_FAMILY_ENTRY)
#undef LLMTRAIN_FAMILY_ENTRY

/// Names of the tensors of Llama, which most families keep.
DecoderNames llama_names();
/// Llama's parts and widths; families that descend from it change what differs.
void llama_defaults(ModelConfig& config);

}  // namespace llmtrain
