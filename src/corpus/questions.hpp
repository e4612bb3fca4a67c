#pragma once
// Questions about the stories of the example corpus, whose answers stand in the story: a task for instruction tuning;
// and preferences between endings of the stories.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

struct StoryQuestion {
  std::string question;  ///< "What color was the kite?"
  std::string answer;    ///< "Blue."
};

/// Questions about one story of stories_grammar(), in the order of their answers in the text.
std::vector<StoryQuestion> questions_about(std::string_view story);

/// Calls sink(prompt, completion) for each question about story 0, 1, ... of the seed, until the texts have `bytes`
/// bytes together or the next would exceed them. A prompt is the story, a line break, the question and a space. Returns
/// the number of questions.
int64_t write_questions(uint64_t seed, int64_t bytes,
                        const std::function<void(std::string_view prompt, std::string_view completion)>& sink);

// Preferences between endings of the example corpus' stories, of which the best policy is known: it tells the same
// stories with the same probabilities, but the feeling at the end is always a happy one.

/// True for a feeling of stories_grammar() that counts as happy: seven of twelve.
bool is_happy(std::string_view feeling);
/// The last word of a story that ends with a feeling; empty for other stories.
std::string_view last_feeling(std::string_view story);

/// Calls sink(prompt, chosen, rejected) for story 0, 1, ... of the seed that end with a feeling, until the texts have
/// `bytes` bytes together or the next would exceed them. A prompt is the story without its last line; both answers are
/// that line, one with a happy feeling at the end and one with another. Returns the number of pairs.
int64_t write_preferences(
    uint64_t seed, int64_t bytes,
    const std::function<void(std::string_view prompt, std::string_view chosen, std::string_view rejected)>& sink);

}  // namespace llmtrain
