#pragma once
// The file of an offline run of W&B, run-ID.wandb. Its format is private to W&B and follows version 0.31.0 of its
// client, whose `wandb sync` tests/metrics/wandb_oracle.py runs: a header of 7 bytes, then records in the log format of
// LevelDB (blocks of 32 KiB; chunks of CRC-32, length, type), each a wandb.Record.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "metrics/append_file.hpp"

namespace llmtrain {

inline constexpr const char* wandb_version = "0.31.0";
inline constexpr const char* wandb_min_consumer = "0.70.0";  ///< as this version writes it

/// Appends records to a file, which is created where it is missing. UserError: cannot_create, io.
class WandbLog {
 public:
  explicit WandbLog(const std::string& path);

  void append(std::string_view payload);
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
  int64_t bytes_ = 0;
};

/// The chunks of a record that begins `offset` bytes into the file.
std::string wandb_chunks(std::string_view payload, int64_t offset);
std::string wandb_file_header();

/// Calls see(payload) for each record up to the first one that is damaged or cut off. UserError: io; bad_content if it
/// is no such file.
void read_wandb_log(const std::string& path, const std::function<void(std::string_view payload)>& see);

}  // namespace llmtrain
