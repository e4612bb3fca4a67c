#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "hf/weights/match_weights.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain {

/// The weights in a Hugging Face folder, as its files have them: what a store of 16 bits has rounded.
class FolderValues {
 public:
  /// Opens every file. UserError as match_weights and read_weight_index.
  FolderValues(const std::string& folder, const DecoderShape& shape, std::vector<UnitSpec> units);

  /// Writes those of the elements [begin, end) of a unit that the files have to their place in `out`.
  void read(int unit, int64_t begin, int64_t end, float* out) const;

 private:
  std::vector<UnitSpec> units_;
  WeightIndex index_;
  WeightMatch match_;
  std::vector<FileHandle> files_;
};

}  // namespace llmtrain
