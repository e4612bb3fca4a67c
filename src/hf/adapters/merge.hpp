#pragma once
// Merges an adapter into its model: W + scale B A, with the magnitudes of DoRA, and what was trained beside the
// adapters instead of the model's own tensors.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hf/export.hpp"

namespace llmtrain {

/// The weights to which an adapter is added. One that was trained on a quantised model gives another model with the
/// weights from before they were quantised than with those that it was trained on, so that the user names which;
/// as_stored: whichever the folder has.
enum class MergeBase : uint8_t { unnamed, bits16, dequantized, as_stored };

/// Writes the model in `folder` with the adapter as a folder of options.output. The tensors have the names and types of
/// the model's files; other files are copied, with options.texts and the tokenizer of options in their place. Reads and
/// holds one tensor at a time; calls `pause` in between. Returns warnings for the user.
///
/// A quantised folder can only be merged dequantised, and `base` must say so; one in 16 bits cannot be. `base` must be
/// named too if the adapter was trained on a quantised model, as its metadata or the config.json of its model says.
///
/// Unless `any_model`, an adapter that names another model is refused: if it has the hash of its model's frozen
/// tensors, the hash decides; else the last part of base_model_name_or_path must be that of the folder's path. Neither
/// can be compared between a model and its quantised folder: that is a warning where `base` is named.
std::vector<std::string> merge_adapter(const std::string& folder, const std::string& adapter,
                                       const ExportOptions& options, const std::function<void()>& pause = {},
                                       bool any_model = false, MergeBase base = MergeBase::unnamed);

}  // namespace llmtrain
