#pragma once
#include <string>
#include <vector>

#include "convert/system.hpp"

namespace llmtrain::convert {

/// Result for one key of the settings.
struct Finding {
  std::string file;
  int line;
  std::string key;
  Effect effect;
  std::string text;  ///< deck keys with their values, the reason, what to do instead, or the nearest known key
};

struct Conversion {
  const System* system;
  std::string deck;
  std::vector<Finding> findings;     ///< one for each key, in the order of the files
  std::vector<std::string> remarks;  ///< sentences about the deck as a whole
  std::vector<std::string> needs;    ///< "section.key: what to give": required keys that the settings cannot tell

  size_t count(Effect effect) const;
};

/// Most GPUs, passes or sequences in one number of the settings.
inline constexpr int64_t max_batch = 1 << 20;

}  // namespace llmtrain::convert
