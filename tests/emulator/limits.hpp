#pragma once
// What the emulated GPU does not grant: by chance, or for lack of memory.
// Environment variables:
//   LLMTRAIN_EMULATOR_REFUSALS    seed of refuses(), 0 or more
//   LLMTRAIN_EMULATOR_GRAPH_NODE  bytes of device memory that each node of a graph takes (4096)

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>

namespace llmtrain::emulator {

/// With LLMTRAIN_EMULATOR_REFUSALS: true for about half of all requests, by their numbers and the seed. What a GPU may
/// refuse: the algorithm that a product has for many columns, if there are fewer; to make a graph.
bool refuses(std::initializer_list<int64_t> request);
/// Number of refused requests since the start of the program.
int64_t refusals();

/// Device memory of what has no address. False if there is not enough.
bool take_device_bytes(size_t bytes);
void give_back_device_bytes(size_t bytes);

/// Sets an environment variable during its lifetime.
class ScopedSetting {
 public:
  ScopedSetting(const char* name, int64_t value) : name_(name) {
    if (const char* given = std::getenv(name)) before_ = given;
    setenv(name, std::to_string(value).c_str(), 1);
  }
  ~ScopedSetting() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  ScopedSetting(const ScopedSetting&) = delete;
  ScopedSetting& operator=(const ScopedSetting&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace llmtrain::emulator
