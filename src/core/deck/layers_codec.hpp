#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck_value.hpp"

namespace llmtrain {

/// Codec of layers as numbers and ranges: `0, 2, 8-11`.
struct LayersCodec {
  static std::vector<int64_t> parse(std::string_view text, const KeyInfo&);
  static std::string print(const std::vector<int64_t>& layers);
  static std::string type() { return "list of layers and ranges a-b"; }
};

}  // namespace llmtrain
