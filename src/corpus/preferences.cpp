#include "corpus/preferences.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/philox.hpp"
#include "corpus/stories.hpp"

namespace llmtrain {

namespace {

constexpr std::array<std::string_view, 7> happy = {"cheerful", "glad", "grateful", "lucky", "proud", "safe", "warm"};
constexpr std::array<std::string_view, 5> unhappy = {"cold", "hungry", "sleepy", "tired", "weak"};
constexpr uint64_t corpus_tag = 0x70726566;  // its random numbers are not those of the stories

}  // namespace

bool is_happy(std::string_view feeling) { return std::ranges::find(happy, feeling) != happy.end(); }

std::string_view last_feeling(std::string_view story) {
  if (!story.ends_with('.')) return {};
  story.remove_suffix(1);
  const std::string_view word = story.substr(story.rfind(' ') + 1);
  return is_happy(word) || std::ranges::find(unhappy, word) != unhappy.end() ? word : std::string_view();
}

int64_t write_preferences(
    uint64_t seed, int64_t bytes,
    const std::function<void(std::string_view prompt, std::string_view chosen, std::string_view rejected)>& sink) {
  const uint64_t key = random_key(seed, RandomPurpose::sampling, corpus_tag);
  int64_t count = 0, written = 0;
  for (uint64_t index = 0;; ++index) {
    const std::string text = story(seed, index);
    const std::string_view feeling = last_feeling(text);
    if (feeling.empty()) continue;
    const size_t line = text.rfind('\n') + 1, word = text.size() - 1 - feeling.size();
    const std::string prompt = text.substr(0, line), start = text.substr(line, word - line);
    const std::string chosen = start + std::string(happy[random_bits(key, index, 0) % happy.size()]) + ".";
    const std::string rejected = start + std::string(unhappy[random_bits(key, index, 1) % unhappy.size()]) + ".";
    const auto size = static_cast<int64_t>(prompt.size() + chosen.size() + rejected.size());
    if (size > bytes - written) return count;
    sink(prompt, chosen, rejected);
    written += size;
    ++count;
  }
}

}  // namespace llmtrain
