// llmtool verify: checks every byte of a checkpoint against its manifest.

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>

#include "checkpoint/checkpoint_reader.hpp"
#include "parallel/local_communicator.hpp"
#include "tool/tool.hpp"
#include "train/run/suspects.hpp"

namespace llmtrain {
namespace {

/// A checkpoint with a missing file is damaged; exit code 66 is for a path that does not exist.
Manifest verified(const std::string& path) {
  const auto alone = make_local_communicator();
  try {
    return verify_checkpoint(path, *alone);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::missing_input || !std::filesystem::exists(path)) throw;
    throw UserError(ExitCode::bad_content, error.what());
  }
}

void verify(const std::string& path) {
  const Manifest manifest = verified(path);
  int64_t bytes = 0;
  for (const CheckpointFile& file : manifest.all_files()) bytes += file.bytes;
  std::cout << fmt::format("{}: intact, step {}, {} tensors, {} files, {} bytes\n", path, manifest.step,
                           tensors_in_blocks(manifest.schema).size(), manifest.all_files().size(), bytes);
  if (!is_suspect(path)) return;
  std::cout << fmt::format(
      "{}: suspect: a rank computed wrongly after the last replay that agreed; the run does not "
      "resume from it\n",
      path);
}

}  // namespace

Subcommand add_verify(CLI::App& program) {
  CLI::App* app = program.add_subcommand("verify", "check every byte of a checkpoint; exit with code 0 or 65");
  const auto path = std::make_shared<std::string>();
  app->add_option("checkpoint", *path, "folder of a checkpoint, .../checkpoints/step-XXXXXXXX")->required();
  return {app, [path] { verify(*path); }};
}

}  // namespace llmtrain
