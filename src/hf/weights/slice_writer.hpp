#pragma once
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/params.hpp"
#include "hf/model_folder.hpp"
#include "models/decoder.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Source of weights: returns elements [begin, end) of a unit, fp32, on rank 0. All ranks of a job call it.
using GatherWeights = std::function<void(int unit, int64_t begin, int64_t end, float* out)>;

/// Sends the values of a slice through this process or, on the rank with the writer, into the file. It stores an error
/// of reading or writing for later, since the other ranks need this one in the gathers that follow. A request to stop
/// ends the work if it is `cancellable`.
class SliceWriter {
 public:
  SliceWriter(const GatherWeights& gather, ModelFolderWriter* writer, Communicator& communicator,
              bool cancellable = true)
      : gather_(gather), writer_(writer), communicator_(communicator), cancellable_(cancellable) {}

  /// `offset` is that of the slice in its unit; the values become those of every tensor in `names`, or of the slice's
  /// block in it.
  void write(int unit, int64_t offset, const ParamSpec& param, const ParamSlice& slice,
             const std::vector<std::string>& names);
  /// Does other work of writing, whose error is stored too.
  void keep_failure(const std::function<void()>& work);
  void raise() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void save(const std::vector<std::string>& names, int64_t first, const float* values, int64_t count);
  void turn(int64_t at, int64_t rows, int64_t columns);

  const GatherWeights& gather_;
  ModelFolderWriter* writer_;
  Communicator& communicator_;
  bool cancellable_;
  std::vector<float> values_, turned_;
  std::exception_ptr failure_;
};

/// Embedding rows without a token are omitted: other programs would take them for tokens.
ParamSlice exported_slice(const DecoderShape& shape, const ParamSlice& slice);

/// The units of a store.
std::vector<UnitSpec> units_of(const ParamStore& params);

}  // namespace llmtrain
