#include "parallel/job/end_claim.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace llmtrain {
namespace {

std::array<char, 4096> file{};
std::atomic<bool> active = false;

}  // namespace

void set_claim_file(const std::string& path) {
  active = false;
  if (path.empty() || path.size() >= file.size()) return;
  std::memcpy(file.data(), path.c_str(), path.size() + 1);
  active = true;
}

bool claim_end(int code) {
  if (!active) return true;
  const int descriptor = ::open(file.data(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno != EEXIST;
  std::array<char, 16> text{};
  const char* end = std::to_chars(text.data(), text.data() + text.size(), code).ptr;
  [[maybe_unused]] const ssize_t written = ::write(descriptor, text.data(), static_cast<size_t>(end - text.data()));
  ::close(descriptor);
  return true;  // a file without a code is a claim too
}

std::optional<int> claimed_code() {
  if (!active) return std::nullopt;
  const int descriptor = ::open(file.data(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  std::array<char, 16> text{};
  const ssize_t length = ::read(descriptor, text.data(), text.size());
  ::close(descriptor);
  int code = 0;
  if (length > 0) std::from_chars(text.data(), text.data() + length, code);
  return code > 0 && code < 256 ? std::optional(code) : std::nullopt;
}

}  // namespace llmtrain
