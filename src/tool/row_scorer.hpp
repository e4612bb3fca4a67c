#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/formats/encode_documents.hpp"
#include "data/stream/data_stream.hpp"
#include "kernels/matmul.hpp"
#include "text/chat/chat_encoder.hpp"
#include "tool/loaded_model.hpp"

namespace llmtrain {

/// A model with room for rows of some length; a longer row restarts it with more room.
class RowScorer {
 public:
  explicit RowScorer(const ModelOptions& options) : loaded_(options) {}

  const LoadedModel& model() const { return loaded_; }
  int64_t room() const { return room_; }  ///< tokens

  /// Returns a row as a batch of one segment without targets.
  static HostBatch batch_of(const std::vector<int32_t>& ids);
  /// Returns the model's value for each token of such a batch: log-probability of the target, nats, or score; of a
  /// model of labels the outputs of each token whose loss weight is not 0.
  std::vector<float> score(const HostBatch& row, ProductRole role);

  /// Returns true if a row of this many tokens needs more room than the rows before it, and grows the room for it.
  bool needs_room(int64_t tokens);
  /// Prints the memory for rows that fit into the room. It allocates nothing; score() must not follow.
  void print_estimate();

 private:
  void plan(Arena& arena);

  LoadedModel loaded_;
  std::optional<BatchBuffers> batch_;
  Tensor values_;  ///< fp32 [N], or [N, K]
  int64_t room_ = 0;
};

/// A row as a run of instruction tuning, preferences or rewards reads it.
struct EncodedLine {
  int64_t number = 0;                 ///< from 1
  std::vector<EncodedRow> documents;  ///< one, or two for a pair
  LeftOut left_out = LeftOut::no;     ///< why a run does not train on it
};

/// Calls work(row) for each row of a JSONL file, or of the standard input for "-", whose format is the first row's.
/// Rows with input_ids are as they are. Rows without documents, empty texts and conversations whose turns do not
/// alternate, are passed over. Returns notes for the user: how many these are, and columns of text that are not read.
/// Errors, those of `work` too, begin with the file and the line.
std::vector<std::string> for_each_encoded_row(const std::string& input, const TextFormat& rules,
                                              const Tokenizer& tokenizer, const ChatEncoder& encoder,
                                              const std::function<void(const EncodedLine&)>& work);

}  // namespace llmtrain
