#include "corpus/questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/philox.hpp"
#include "corpus/stories.hpp"

namespace llmtrain {

namespace {

/// Words of one sentence, without punctuation.
std::vector<std::string> words_of(std::string_view sentence) {
  std::vector<std::string> words(1);
  for (const char c : sentence) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// "blue" -> "Blue."
std::string as_answer(std::string word) {
  word.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(word.front())));
  return word + ".";
}

/// "One foggy evening Anna, a silly girl from Cork, met Mia."
void ask_about_meeting(std::string_view line, std::vector<StoryQuestion>& questions) {
  const std::vector<std::string> words = words_of(line);
  questions.push_back({"When was it?", fmt::format("One {} {}.", words[1], words[2])});
  for (size_t i = 3; i + 1 < words.size(); ++i) {
    if (words[i] == "in" || words[i] == "to" || words[i] == "from") {
      questions.push_back({"What town was it?", as_answer(words[i + 1])});
    }
  }
}

/// "Anna had a mint Umbrella ...", "Anna found 5 wise Nuts. ...", "Anna fed a blue dog, Pepper. ..."
void ask_about_event(std::string_view line, std::vector<StoryQuestion>& questions) {
  const std::vector<std::string> words = words_of(line);
  const std::string& name = words[0];
  if (words[1] == "had") {
    questions.push_back({fmt::format("What color was the {}?", words[4]), as_answer(words[3])});
    questions.push_back({fmt::format("Who had the {}?", words[4]), as_answer(name)});
  } else if (words[1] == "found") {
    questions.push_back({fmt::format("How many {} did {} find?", words[4], name), as_answer(words[2])});
  } else {
    questions.push_back({fmt::format("What animal was {}?", words[5]), fmt::format("A {}.", words[4])});
    questions.push_back({fmt::format("Who fed {}?", words[5]), as_answer(name)});
  }
}

constexpr std::array<std::string_view, 7> happy = {"cheerful", "glad", "grateful", "lucky", "proud", "safe", "warm"};
constexpr std::array<std::string_view, 5> unhappy = {"cold", "hungry", "sleepy", "tired", "weak"};
constexpr uint64_t corpus_tag = 0x70726566;  // its random numbers are not those of the stories

}  // namespace

std::vector<StoryQuestion> questions_about(std::string_view story) {
  std::vector<StoryQuestion> questions;
  const size_t first = story.find('\n'), second = story.find('\n', first + 1);
  ask_about_meeting(story.substr(0, first), questions);
  ask_about_event(story.substr(first + 1, second - first - 1), questions);
  return questions;
}

int64_t write_questions(uint64_t seed, int64_t bytes,
                        const std::function<void(std::string_view prompt, std::string_view completion)>& sink) {
  int64_t count = 0, written = 0;
  for (uint64_t index = 0;; ++index) {
    const std::string text = story(seed, index);
    for (const StoryQuestion& one : questions_about(text)) {
      const std::string prompt = fmt::format("{}\n{} ", text, one.question);
      const auto size = static_cast<int64_t>(prompt.size() + one.answer.size());
      if (size > bytes - written) return count;
      sink(prompt, one.answer);
      written += size;
      ++count;
    }
  }
}

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
