// Rows of tasks in the shapes of published files: the prompts are those of lm-evaluation-harness, and what is wrong in
// a row is said with its file and line. (The scores are compared in tests/decks/choice_tasks_test.cpp.)

#include "scores/choice_task.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"
#include "scores/continuation.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

ChoiceTask parse(const std::string& text, const std::string& path = "rows.jsonl", const std::string& labels = "") {
  return parse_choice_task({path, text, labels});
}

std::string error_of(const std::string& text, const std::string& path = "rows.jsonl", const std::string& labels = "") {
  try {
    parse(text, path, labels);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "no error";
}

TEST(ChoiceTask, PromptsAreThoseOfTheHarness) {
  const ChoiceTask hellaswag = parse(
      R"({"activity_label": "Cook", "ctx_a": "A [header] pan.", "ctx_b": "she  LOOKS", "endings": ["[x] a", "b [title] c"], "label": "1"})");
  ASSERT_EQ(hellaswag.rows.size(), 1U);
  EXPECT_EQ(hellaswag.rows[0].choices[1].context, "Cook: A pan. She looks");
  EXPECT_EQ(hellaswag.rows[0].choices[0].continuation, "  a") << "as there, marks leave their space";
  EXPECT_EQ(hellaswag.rows[0].choices[1].continuation, " b. c");
  EXPECT_EQ(hellaswag.rows[0].answer, 1);

  const ChoiceTask winogrande =
      parse(R"({"sentence": "The _ is wet. ", "option1": "dog", "option2": "tea", "answer": "2"})");
  EXPECT_EQ(winogrande.kind, ChoiceTask::Kind::contexts);
  EXPECT_EQ(winogrande.rows[0].choices[0].context, "The dog");
  EXPECT_EQ(winogrande.rows[0].choices[1].context, "The tea");
  EXPECT_EQ(winogrande.rows[0].choices[1].continuation, " is wet.");
  EXPECT_EQ(winogrande.rows[0].answer, 1);

  const ChoiceTask arc = parse(
      R"({"question": {"stem": "Why?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]}, "answerKey": "2"})");
  EXPECT_EQ(arc.rows[0].choices[0].context, "Question: Why?\nAnswer:");
  EXPECT_EQ(arc.rows[0].answer, 1);

  const ChoiceTask mmlu = parse("\"Who, \"\"me\"\"?\nYou?\",x,y,z,w,C\nWhat?,1,2,3,4,A\n", "a_b_test.csv");
  EXPECT_EQ(mmlu.name, "a_b_test");
  EXPECT_EQ(mmlu.rows[0].choices[0].context,
            "The following are multiple choice questions (with answers) about a b.\n\nWho, \"me\"?\nYou?\nA. x\nB. "
            "y\nC. z\nD. w\nAnswer:");
  EXPECT_EQ(mmlu.rows[0].choices[3].continuation, " D");
  const ChoiceTask marked = parse("\xEF\xBB\xBF\"Who?\",x,y,z,w,C\n", "a_test.csv");
  EXPECT_THAT(marked.rows[0].choices[0].context, HasSubstr("\n\nWho?\nA. x")) << "a byte order mark is not text";
  EXPECT_EQ(mmlu.rows[0].answer, 2);
  EXPECT_EQ(mmlu.rows[1].line, 3) << "the field before has a line end";

  const ChoiceTask lambada = parse(R"({"text": "see the sun"})");
  EXPECT_EQ(lambada.kind, ChoiceTask::Kind::continuation);
  EXPECT_EQ(lambada.rows[0].choices[0].context, "see the");
  EXPECT_EQ(lambada.rows[0].choices[0].continuation, " sun");

  const ChoiceTask piqa = parse(R"({"goal": "g", "sol1": "x", "sol2": "y"})", "rows.jsonl", "1\n");
  EXPECT_EQ(piqa.rows[0].answer, 1);
  const ChoiceTask plain = parse(R"({"context": "c", "choices": ["x", "\u00e9t\u00e9"], "answer": "\u00e9t\u00e9"})");
  EXPECT_EQ(plain.rows[0].answer, 1);
  EXPECT_EQ(plain.rows[0].lengths[1], 3) << "code points";
}

TEST(ChoiceTask, SaysWhatIsWrongWithFileAndLine) {
  const std::string good = R"({"context": "c", "choices": ["x", "y"], "answer": 0})";
  const auto second = [&](const std::string& row) { return error_of(good + "\n\n" + row + "\n"); };
  EXPECT_EQ(second(good), "no error") << "control";
  EXPECT_THAT(second(R"({"context": "c", "choices": ["x", "y"]})"), HasSubstr("rows.jsonl:3: the row has no answer"));
  EXPECT_THAT(second(R"({"context": "c", "choices": ["x", "y"], "answer": 2})"),
              HasSubstr("rows.jsonl:3: answer: 2 is not the number of a choice, 0 to 1"));
  EXPECT_THAT(second(R"({"context": "c", "choices": ["x", "y"], "answer": -1})"), HasSubstr("rows.jsonl:3: answer"));
  EXPECT_THAT(second(R"({"context": "c", "choices": [], "answer": 0})"),
              HasSubstr("rows.jsonl:3: choices: a row needs at least two, not 0"));
  EXPECT_THAT(second(R"({"context": "c", "choices": ["x", ""], "answer": 0})"),
              HasSubstr("rows.jsonl:3: choices[1] is empty"));
  EXPECT_THAT(second(R"({"context": "c", "choices": "xy", "answer": 0})"), HasSubstr("rows.jsonl:3: choices"));
  EXPECT_THAT(second(R"({"goal": "c"})"), HasSubstr("rows.jsonl:3: choices"));
  EXPECT_THAT(second("{"), HasSubstr("rows.jsonl:3: "));
  EXPECT_THAT(error_of(R"({"goal": "c"})"), HasSubstr("the columns of the row fit no format of tasks: winogrande ("));
  EXPECT_THAT(error_of("\n"), HasSubstr("rows.jsonl: there are no rows"));
  EXPECT_THAT(error_of(R"({"goal": "g", "sol1": "x", "sol2": "y"})"),
              HasSubstr("rows.jsonl:1: the row has no answer: neither a column label nor a file of labels"));
  EXPECT_THAT(error_of(R"({"goal": "g", "sol1": "x", "sol2": "y"})", "rows.jsonl", "1\n0\n"),
              HasSubstr("rows.jsonl has 1 rows, but its file of labels has 2"));
  EXPECT_THAT(error_of("a,b,c\n", "x.csv"), HasSubstr("x.csv:1: 3 columns"));
  EXPECT_THAT(error_of("a,b,c,d,e,F\n", "x.csv"), HasSubstr("x.csv:1: answer"));
  EXPECT_THAT(error_of(R"({"sentence": "no blank", "option1": "x", "option2": "y", "answer": "1"})"),
              HasSubstr("rows.jsonl:1: sentence: there is no _"));
}

/// The most likely choice wins, the first among equals; acc_norm divides by the code points.
TEST(ChoiceScores, AreThoseOfTheHarness) {
  ChoiceTask task = parse(R"({"context": "c", "choices": ["x", "yyyy"], "answer": 0}
{"context": "c", "choices": ["x", "yyyy"], "answer": 1}
{"context": "c", "choices": ["x", "y"], "answer": 1}
{"context": "c", "choices": ["x", "y"], "answer": 0})");
  const std::vector<Likelihood> results = {{-1, true},  {-3, false}, {-1, false}, {-3, false},
                                           {-2, false}, {-2, false}, {-2, false}, {-2, false}};
  const auto scores = score_choices(task, results);
  ASSERT_EQ(scores.size(), 4U);
  EXPECT_EQ(scores[0].name, "acc");
  EXPECT_DOUBLE_EQ(scores[0].value, 0.5) << "rows 1 and 4";
  EXPECT_DOUBLE_EQ(scores[1].value, std::sqrt(0.25 / 3));
  EXPECT_EQ(scores[2].name, "acc_norm");
  EXPECT_DOUBLE_EQ(scores[2].value, 0.5) << "rows 2 and 4";
  EXPECT_EQ(choice_score_names(task.kind),
            (std::vector<std::string>{"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"}));
  task.kind = ChoiceTask::Kind::continuation;
  const auto words = score_choices(task, results);
  EXPECT_DOUBLE_EQ(words[0].value, std::exp(2.0)) << "the mean of -1 -3 -2 -2";
  EXPECT_DOUBLE_EQ(words[1].value, 0.25) << "one greedy answer";
}

TEST(Continuation, KeepsTheSpaceAndTheEnd) {
  const auto bytes = make_byte_tokenizer(true);
  const TokenContinuation whole = encode_continuation(*bytes, {"ab ", " cd"}, 10);
  EXPECT_EQ(whole.scored, 4) << "two spaces and two letters";
  EXPECT_EQ(whole.truncated, 0);
  const TokenContinuation cut = encode_continuation(*bytes, {"abcdefgh", " x"}, 4);
  EXPECT_EQ(cut.ids, (std::vector<int32_t>{'f', 'g', 'h', ' ', 'x'})) << "four inputs";
  EXPECT_GT(cut.truncated, 0);
  const TokenContinuation alone = encode_continuation(*bytes, {"", "x"}, 4);
  EXPECT_EQ(alone.ids, (std::vector<int32_t>{bytes->bos_id(), 'x'}));
  EXPECT_EQ(alone.scored, 1);
  EXPECT_THROW(encode_continuation(*bytes, {"a", " bcdef"}, 4), UserError);
  EXPECT_THROW(encode_continuation(*bytes, {"a", ""}, 4), UserError);
}

}  // namespace
}  // namespace llmtrain
