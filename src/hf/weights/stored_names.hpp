#pragma once
// Maps names of tensors in files to names in the model. Wrappers add name components (torch.compile, distributed data
// parallelism, FSDP, activation checkpointing, Lightning), a model that is a member of another class has that member's
// name as a prefix, and a model saved without its head lacks the first component.

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "models/decoder.hpp"

namespace llmtrain {

struct StoredNames {
  std::map<std::string, size_t, std::less<>> number_of;  ///< name in the model -> number of the stored tensor
  std::string added;                                     ///< prefix of all stored names, with wrappers; or empty
  std::string missing;  ///< first component of the model's names ("model."), if the stored names lack it

  /// Returns -1 if there is none.
  int64_t find(std::string_view name) const;
};

/// Throws UserError(bad_content), beginning with `place`, if names have different prefixes, or if two of them become
/// equal.
StoredNames match_names(std::span<const std::string_view> stored, const DecoderNames& model, const std::string& place);

}  // namespace llmtrain
