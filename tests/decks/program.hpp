#pragma once
// Runs llmtrain as a user does, under mpirun, in a folder of its own.

#include <filesystem>
#include <string>
#include <vector>

#include "harness/temporary_folder.hpp"

namespace llmtrain::test {

/// Where this build has what the tests run; empty where it has none.
namespace programs {
extern const std::string llmtrain, llmtool;
extern const std::string faulty;         ///< llmtrain with faults in its numbers
extern const std::string counted;        ///< llmtrain, counting allocations
extern const std::string fault_library;  ///< to be preloaded: faults of the disk
extern const std::string span_tool;      ///< a tool as profilers bring them
extern const std::string mpirun;         ///< with its options; the number of ranks comes next
extern const std::string host_build;     ///< the folder of the host's programs, for builds of other devices
}  // namespace programs

struct Outcome {
  int exit_code = -1;
  std::string output;  ///< standard output and error together
};

/// Shell command; its exit code and what it printed.
Outcome shell(const std::string& command);

struct Launch {
  int ranks = 1;
  int threads = 1;
  std::vector<std::string> arguments;  ///< deck, overrides, options
  std::string program = {};            ///< instead of llmtrain
  std::string environment = {};        ///< NAME='value' for its shell
};
/// One rank starts without mpirun.
Outcome llmtrain(const Launch& launch);
/// `input` is its standard input.
Outcome llmtool(const std::vector<std::string>& arguments, const std::string& input = "");

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& text);
std::filesystem::path source_folder();

}  // namespace llmtrain::test
