#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "hf/weights/weight_index.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

/// A slice of a parameter and its stored tensor.
struct SliceSource {
  int unit;
  int param;
  int slice;
  int64_t columns;
  size_t tensor;  ///< index in WeightIndex::tensors
};

struct WeightMatch {
  std::vector<SliceSource> slices;  ///< every slice of every unit, in order
  /// A head that is stored although it is tied, and the embedding: they must be equal. -1 = none.
  int64_t tied_head = -1;
  int64_t embedding = -1;
  /// Tables that are read from elsewhere (DecoderShape::saved_tables), and the tensors that they replace.
  std::vector<std::pair<std::string, size_t>> replaced;
  std::vector<std::string> notes;     ///< naming of the tensors, and unneeded tensors
  std::vector<std::string> warnings;  ///< tensors that are not used but may have been wanted
};

/// Problems of one kind; messages name the first few.
class Problems {
 public:
  explicit Problems(std::string title) : title_(std::move(title)) {}
  void add(const std::string& what) {
    if (++count_ <= max_named) named_ += (named_.empty() ? "" : ", ") + what;
  }
  std::string text() const {
    if (count_ == 0) return "";
    const std::string rest = count_ > max_named ? fmt::format(" and {} more", count_ - max_named) : "";
    return fmt::format("\n  {}: {}{}", title_, named_, rest);
  }

 private:
  static constexpr int64_t max_named = 12;
  std::string title_, named_;
  int64_t count_ = 0;
};

/// Finds each of the model's tensors, those of adapters left out. Throws UserError(bad_content) that names all missing
/// tensors, unused tensors, and wrong shapes and types at once.
WeightMatch match_weights(const DecoderShape& shape, const std::vector<UnitSpec>& units, const WeightIndex& index);

/// Returns the shape in files of the tensor that a slice is, or is a block of.
std::vector<int64_t> stored_shape(const ParamSpec& param, const ParamSlice& slice);

}  // namespace llmtrain
