// Runs a target on every file of some folders and on mutations of them, the same ones each time, with memory and time
// capped as libFuzzer caps them.
// What it fails on is written to replay-TARGET.input.
// usage: replay TARGET mutations FILE_OR_FOLDER...

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/targets.hpp"

namespace llmtrain::fuzz {
namespace {

constexpr rlim_t max_memory = rlim_t{1} << 30;  // bytes of data
constexpr unsigned max_seconds = 20;            // for one input

std::string input, input_path;

/// Keeps the input; then the signal takes its course.
void keep_input(int signal) {
  const int file = open(input_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0 && write(file, input.data(), input.size()) < 0) close(file);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void run(const Target& target, std::string bytes) {
  input = std::move(bytes);
  alarm(max_seconds);
  target.run(input);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  size_t below(size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

std::string mutated(std::string bytes, const std::string& other, Random& random) {
  constexpr std::string_view bits[] = {
      "[",  "{",    "\"",  "}", ":", ",", "-1", "1e999", "18446744073709551615", "\\u0000", "\xFF\xFF\xFF\xFF",
      "\n", "null", "${X}"};
  for (size_t changes = 1 + random.below(4); changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random.below(bytes.size());
    switch (random.below(7)) {
      case 0:
        bytes[at] = static_cast<char>(static_cast<uint8_t>(bytes[at]) ^ (1u << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        bytes.insert(at, bits[random.below(std::size(bits))]);
        break;
      case 3:
        bytes.erase(at, 1 + random.below(16));
        break;
      case 4:
        bytes.resize(at);
        break;
      case 5:
        bytes.insert(at, bytes.substr(random.below(bytes.size()), 1 + random.below(64)));
        break;
      default:
        if (!other.empty()) bytes.replace(at, 1 + random.below(8), other, random.below(other.size()), random.below(64));
    }
  }
  return bytes;
}

std::vector<std::filesystem::path> files_of(int count, char** paths) {
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < count; ++i) {
    if (std::filesystem::is_directory(paths[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(paths[i])) files.push_back(entry.path());
    } else {
      files.emplace_back(paths[i]);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

int replay(const Target& target, size_t mutations, const std::vector<std::filesystem::path>& files) {
  const rlimit limit{max_memory, max_memory};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
  input_path = "replay-" + std::string(target.name) + ".input";
  for (const int signal : {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, keep_input);
  std::vector<std::string> inputs;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  size_t runs = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::printf("%s\n", files[i].c_str());
    std::fflush(stdout);
    run(target, inputs[i]);
    Random random(i + 1);
    for (size_t m = 0; m < mutations; ++m, ++runs) {
      run(target, mutated(inputs[i], inputs[(i + m) % inputs.size()], random));
    }
  }
  std::printf("%zu files and %zu mutations\n", inputs.size(), runs);
  return inputs.empty() ? 1 : 0;
}

}  // namespace
}  // namespace llmtrain::fuzz

int main(int argc, char** argv) {
  for (const llmtrain::fuzz::Target& target : llmtrain::fuzz::targets()) {
    if (argc > 3 && target.name == argv[1]) {
      return llmtrain::fuzz::replay(target, std::strtoul(argv[2], nullptr, 10),
                                    llmtrain::fuzz::files_of(argc - 3, argv + 3));
    }
  }
  std::fprintf(stderr, "usage: replay TARGET mutations FILE_OR_FOLDER...; targets:");
  for (const llmtrain::fuzz::Target& target : llmtrain::fuzz::targets()) {
    std::fprintf(stderr, " %s", std::string(target.name).c_str());
  }
  std::fprintf(stderr, "\n");
  return 64;
}
