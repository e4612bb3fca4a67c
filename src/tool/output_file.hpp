#pragma once
#include <cstdio>
#include <string>
#include <string_view>

namespace llmtrain {

/// What a subcommand writes: a file that appears whole or not at all, a device or pipe, or "-", the standard output.
/// UserError: cannot_create when a file is there and `overwrite` is false or it cannot be made, io when writing fails.
class OutputFile {
 public:
  OutputFile(const std::string& path, bool overwrite);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool is_standard_output() const { return stream_ == stdout; }
  void write(std::string_view bytes);
  /// Everything is on the disk, though not under the name that was asked for.
  void close();
  /// Everything is on the disk, under the name that was asked for.
  void finish();

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::string partial_;  ///< name while it is written; empty when written in place
  std::FILE* stream_ = nullptr;
};

/// Before a token file is made: UserError(command_line) when its name does not end in .h5, cannot_create when it is
/// there and `overwrite` is false, or its folder is not.
void check_token_file_output(const std::string& path, bool overwrite);

}  // namespace llmtrain
