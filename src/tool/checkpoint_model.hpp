#pragma once
// A checkpoint as a model to run.

#include <memory>
#include <string>

#include "checkpoint/manifest.hpp"
#include "hf/config_json.hpp"
#include "parallel/communicator.hpp"
#include "parallel/param_store.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

class CheckpointModel {
 public:
  static bool is_checkpoint(const std::string& folder);
  /// Verifies every byte; UserError(bad_content). Takes the tokenizer out, if it has one.
  CheckpointModel(const std::string& folder, Communicator& communicator, std::unique_ptr<Tokenizer>& tokenizer);

  const HfConfig& config() const { return config_; }
  void load(ParamStore& params, Communicator& communicator, Stream& stream) const;

 private:
  std::string folder_;
  Manifest manifest_;
  HfConfig config_;
};

}  // namespace llmtrain
