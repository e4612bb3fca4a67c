#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "core/quantization.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;
struct DecoderShape;
struct ModelConfig;

/// [quantization]: storage of the frozen matrices of linear layers in 4 or 8 bits, in bitsandbytes' terms.
struct QuantizationConfig {
  enum class Type : uint8_t { nf4, fp4 };

  int64_t bits = 0;       ///< 0: off, 4, 8
  Type type = Type::nf4;  ///< of 4 bits
  bool double_quantization = true;
  int64_t block_size = 64;
  double outlier_threshold = 6;                         ///< of 8 bits
  std::vector<std::string> skip_modules = {"lm_head"};  ///< modules of 16 bits; "none": not even the head

  bool active() const { return bits != 0; }
  Quantization format() const;
  void visit(DeckKeys& keys);
  /// Checks the keys against the model, whose number of layers and components are known. `trained`: why the model's
  /// matrices cannot be stored in fewer bits; may be empty.
  /// Takes the storage of a folder's matrices, which checkpoints record, unless the deck chooses one.
  void take(DeckLoader& deck, const QuantizationConfig& of_folder);
  void resolve(DeckLoader& deck, const ModelConfig& model, std::string_view trained) const;
};

template <>
inline constexpr auto enum_names<QuantizationConfig::Type> = name_list("nf4", "fp4");

/// Modules that a configuration quantises, and what is wrong with it: keys of [quantization] with messages.
struct QuantizedPart {
  std::vector<std::string> modules;  ///< sorted
  std::vector<std::pair<std::string, std::string>> errors;
};
/// Sizes of the model do not matter, and may be unknown.
QuantizedPart choose_quantized(const QuantizationConfig& config, const ModelConfig& model);

/// A configuration that was read from a model's files: without what names nothing in the model, and not active where
/// the rest is impossible here, so that these matrices are dequantised.
QuantizationConfig stored_quantization(QuantizationConfig config, const ModelConfig& model);

/// Sets the shape's rule by a configuration without errors, if it is active. A shape without a rule of what is trained
/// is then all frozen.
void quantize(DecoderShape& shape, const QuantizationConfig& config);

}  // namespace llmtrain
