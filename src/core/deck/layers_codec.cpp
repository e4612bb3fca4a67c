#include "core/deck/layers_codec.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llmtrain {

std::vector<int64_t> LayersCodec::parse(std::string_view text, const KeyInfo&) {
  std::vector<int64_t> layers;
  for (std::string_view item : split_list(text)) {
    const size_t dash = item.find('-');
    const int64_t first = parse_count(item.substr(0, dash), between(0, 4095));
    const int64_t last = dash == std::string_view::npos ? first : parse_count(item.substr(dash + 1), between(0, 4095));
    if (last < first) throw UserError(ExitCode::deck, fmt::format("'{}' ends before it begins", item));
    for (int64_t layer = first; layer <= last; ++layer) layers.push_back(layer);
  }
  std::ranges::sort(layers);
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

std::string LayersCodec::print(const std::vector<int64_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += end - i > 1 ? fmt::format("{}-{}", layers[i], layers[end - 1]) : fmt::format("{}", layers[i]);
    i = end;
  }
  return text;
}

}  // namespace llmtrain
