#pragma once
// A checkpoint as a model to run.

#include <map>
#include <memory>
#include <string>

#include "checkpoint/manifest.hpp"
#include "hf/config_json.hpp"
#include "parallel/communicator.hpp"
#include "params/param_store.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

class CheckpointModel {
 public:
  /// The folder itself, the newest checkpoint of a run directory, or "" when it is neither. Nothing is verified.
  static std::string find(const std::string& folder);
  /// config.json and generation_config.json of the folder that the run began with, as the checkpoint keeps them.
  static std::map<std::string, std::string> texts(const std::string& folder);

  /// Verifies every byte; UserError(bad_content). Takes the tokenizer out, if it has one.
  CheckpointModel(const std::string& folder, Communicator& communicator, std::unique_ptr<Tokenizer>& tokenizer);

  const HfConfig& config() const { return config_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }
  /// Rows of the embedding that are tokens. (A model that was published has no others.)
  int64_t tokens() const { return tokens_; }
  void load(ParamStore& params, Communicator& communicator, Stream& stream) const;

 private:
  std::string folder_;
  Manifest manifest_;
  HfConfig config_;
  int64_t tokens_ = 0;
};

}  // namespace llmtrain
