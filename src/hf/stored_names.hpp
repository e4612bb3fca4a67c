#pragma once
// Names of tensors in files -> names in the model. Wrappers of a model put components of their own into every name
// (torch.compile, distributed data parallelism, FSDP, activation checkpointing, Lightning), a model that is a member of
// another class has that member's name before all of its names, and a model saved without its head lacks the first
// component.

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "models/decoder.hpp"

namespace llmtrain {

struct StoredNames {
  std::map<std::string, size_t, std::less<>> number_of;  ///< name in the model -> number of the stored tensor
  std::string added;    ///< what all stored names have before them, wrappers included; or empty
  std::string missing;  ///< the first component of the model's names ("model."), where the stored names lack it

  /// -1: none.
  int64_t find(std::string_view name) const;
};

/// UserError(bad_content), beginning with `place`, where names do not agree in what stands before them, or two of them
/// become one.
StoredNames match_names(std::span<const std::string_view> stored, const DecoderNames& model, const std::string& place);

}  // namespace llmtrain
