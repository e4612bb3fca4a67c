#pragma once
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "core/progress.hpp"

namespace llmtrain {

/// Output of a subcommand: a file that appears atomically, a device or pipe, or "-", the standard output. Throws
/// UserError: cannot_create if the file exists and `overwrite` is false or it cannot be made, io if writing fails.
class OutputFile {
 public:
  OutputFile(const std::string& path, bool overwrite);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool is_standard_output() const { return stream_ == stdout; }
  /// Shows progress towards this many bytes, unless the output is the standard output.
  void expect(int64_t bytes);
  void write(std::string_view bytes);
  /// Makes everything durable, still under the temporary name.
  void close();
  /// Makes everything durable, under the requested name.
  void finish();

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::string partial_;  ///< temporary name; empty if written in place
  std::FILE* stream_ = nullptr;
  std::optional<Progress> progress_;
};

/// Checks the output before a token file is made. Throws UserError: command_line if its name does not end in .h5,
/// cannot_create if it exists and `overwrite` is false, or if its folder does not exist.
void check_token_file_output(const std::string& path, bool overwrite);

}  // namespace llmtrain
