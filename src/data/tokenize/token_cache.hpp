#pragma once
// Token files of a run's text and rows, kept in a folder under the hash of all that determines them.

#include <memory>
#include <string>
#include <vector>

#include "data/files/input_kind.hpp"
#include "data/files/text_source.hpp"
#include "data/files/token_file.hpp"
#include "data/progress.hpp"
#include "data/sample_rules.hpp"
#include "data/tokenize/tokenize.hpp"
#include "parallel/communicator.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

class TokenCache {
 public:
  /// Keeps references to `config`, `communicator` and `report`. `encoder` is null without rows of instruction data.
  TokenCache(const SampleRules& config, int64_t sequence_length, std::string folder,
             std::shared_ptr<const Tokenizer> tokenizer, const ChatEncoder* encoder, Communicator& communicator,
             const ProgressReport& report)
      : config_(config),
        sequence_length_(sequence_length),
        folder_(std::move(folder)),
        tokenizer_(std::move(tokenizer)),
        encoder_(encoder),
        communicator_(communicator),
        report_(report) {}

  /// Opens the token file of these files, all of one kind, whose scan is `scan`; makes it if there is none. Collective.
  std::shared_ptr<const TokenFile> open(const std::vector<InputFile>& files, SourceScan scan) const;

 private:
  bool holds_missing_row(const std::string& path) const;
  bool holds_longer(const std::string& path, int64_t longest) const;
  int64_t longest_document(const std::vector<InputFile>& files) const;
  void make(const TokenizeRequest& request) const;
  std::string settings_of(const TokenizeRequest& request) const;

  const SampleRules& config_;
  int64_t sequence_length_;
  std::string folder_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  const ChatEncoder* encoder_;
  Communicator& communicator_;
  const ProgressReport& report_;
};

}  // namespace llmtrain
