#include "decks/program.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace llmtrain::test {

namespace programs {
const std::string llmtrain = LLMTRAIN_PROGRAM, llmtool = LLMTOOL_PROGRAM, faulty = LLMTRAIN_FAULTY_PROGRAM,
                  counted = LLMTRAIN_COUNTED_PROGRAM, fault_library = LLMTRAIN_FAULT_LIBRARY,
                  span_tool = LLMTRAIN_SPAN_TOOL, mpirun = LLMTRAIN_MPIRUN, host_build = LLMTRAIN_HOST_BUILD;
}  // namespace programs

namespace {

std::string quoted(const std::string& argument) {
  std::string out = "'";
  for (char c : argument) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

Outcome shell(const std::string& command) {
  FILE* pipe = popen(("{ " + command + " ; } 2>&1 </dev/null").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start a shell");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) outcome.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

Outcome llmtrain(const Launch& launch) {
  std::string command =
      "OMP_NUM_THREADS=" + std::to_string(launch.threads) + " " + launch.environment + " timeout 500 ";
  if (launch.ranks > 1) command += programs::mpirun + " " + std::to_string(launch.ranks) + " ";
  command += quoted(launch.program.empty() ? programs::llmtrain : launch.program);
  for (const std::string& argument : launch.arguments) command += " " + quoted(argument);
  return shell(command);
}

Outcome llmtool(const std::vector<std::string>& arguments, const std::string& input) {
  std::string command = "OMP_NUM_THREADS=2 timeout 500 " + quoted(programs::llmtool);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  if (input.empty()) return shell(command);
  const TemporaryFolder folder;
  write_file(folder / "input", input);
  return shell(command + " < " + quoted((folder / "input").string()));
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::filesystem::path source_folder() { return LLMTRAIN_SOURCE_DIR; }

}  // namespace llmtrain::test
