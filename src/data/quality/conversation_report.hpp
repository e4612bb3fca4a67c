#pragma once
// Report of llmtool validate on rows of instruction data: what training on them would meet.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

struct ConversationReportOptions {
  const ChatEncoder* encoder = nullptr;  ///< null: only the shape of rows is examined
  int64_t sequence_length = 0;           ///< longest sample, as batch.sequence_length; 0: no limit
  int64_t unpacked_limit = int64_t{64} << 30;
  int threads = 1;
  size_t max_shown = 10;  ///< locations of each kind
};

/// Keys of the object: usable, files [{path, bytes, rows, format}], rows, broken_rows, problems (locations), duplicates
/// {exact, near}, length {characters, tokens, trained_tokens: {shortest, mean, ...}}, warnings (texts); with an
/// encoder template, untrained, truncated, lost_targets, merged_borders, without_stop, split_tokens [{text, rows}].
/// Preference data also has pairs, equal, empty, and length.rejected_tokens; tokens are then those of the chosen
/// answers. `usable` is true if no row is broken and some row would train a token.
nlohmann::ordered_json make_conversation_report(const std::vector<InputFile>& files,
                                                const ConversationReportOptions& options, const ProgressReport& report);

}  // namespace llmtrain
