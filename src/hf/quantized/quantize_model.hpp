#pragma once
// Writes a Hugging Face folder with its linear layers quantised, in bitsandbytes' layout.

#include <string>
#include <vector>

#include "core/quantization.hpp"
#include "hf/export.hpp"

namespace llmtrain {

/// Quantises the linear layers of `source` but the head and `skip_modules` (a module's name, its end, or a module that
/// contains it); other tensors and files are copied. Holds one tensor's codes at a time. Returns warnings for the user.
/// Throws UserError(bad_content) for a folder that is quantised already, and for values that are not finite.
std::vector<std::string> quantize_model(const std::string& source, ExportOptions options,
                                        const Quantization& quantization, const std::vector<std::string>& skip_modules);

/// Returns "nf4 in blocks of 64, doubly quantised", "fp4 in blocks of 128" or "int8".
std::string description_of(const Quantization& quantization);

}  // namespace llmtrain
