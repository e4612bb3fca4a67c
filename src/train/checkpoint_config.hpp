#pragma once
#include <cstdint>
#include <string>

#include "core/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [checkpoint]; every_... = 0 means never.
struct CheckpointConfig {
  int64_t every_steps = 500;
  double every_minutes = 0;
  bool at_end = true;
  int64_t keep = 3;
  std::string resume = "auto";  ///< auto, never, required, or a checkpoint's path
  bool asynchronous = true;
  int64_t buffer = int64_t{256} << 20;  ///< bytes
  bool verify = true;
  bool signal_save = true;

  bool saves() const { return every_steps > 0 || every_minutes > 0 || at_end; }
  /// A path that resume names, or empty.
  std::string resume_path() const {
    return resume == "auto" || resume == "never" || resume == "required" ? std::string() : resume;
  }

  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
