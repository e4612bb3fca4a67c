#pragma once
// Questions about the stories of the example corpus, whose answers stand in the story: a task for instruction tuning.

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

}  // namespace llmtrain
