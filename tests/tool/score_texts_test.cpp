// llmtool score with metrics of texts: what it prints, files of lines and of rows, and what it refuses.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using test::llmtool;
using test::Outcome;
using testing::HasSubstr;

class ScoreTexts : public test::ToolTest {
 protected:
  const std::string hypotheses_ = file("hypotheses.txt", "The cat sat on the mat.\r\nIt rains\n");
  const std::string references_ = file("references.txt", "The cat is on the mat.\nIt rained");

  static Outcome score(const std::string& metric, const std::string& hypotheses, std::vector<std::string> references,
                       const std::vector<std::string>& options = {}, const std::string& input = "") {
    std::vector<std::string> all = {"score", "--metric", metric, "--hypotheses", hypotheses, "--references"};
    all.insert(all.end(), references.begin(), references.end());
    all.insert(all.end(), options.begin(), options.end());
    return llmtool(all, input);
  }
  static std::string refused(const Outcome& outcome, int code) {
    EXPECT_EQ(outcome.code, code) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  }
};

TEST_F(ScoreTexts, PrintsScoreAndSignature) {
  const Outcome outcome = score("bleu,rouge1,exact_match", hypotheses_, {references_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "bleu|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 45.9150  (precision_1 77.7778, "
            "precision_2 57.1429, precision_3 40, precision_4 25, brevity_penalty 1, hypothesis_length 9, "
            "reference_length 9)\n"
            "rouge1 = 0.6667  (precision 0.666667, recall 0.666667)\n"
            "exact_match = 0.0000\n");
}

TEST_F(ScoreTexts, PrintsJson) {
  const Outcome outcome = score("token_f1", hypotheses_, {references_}, {"--json"});
  const json row = json::parse(outcome.out);
  EXPECT_EQ(row["metric"], "token_f1");
  EXPECT_EQ(row["segments"], 2);
  EXPECT_DOUBLE_EQ(row["score"], 62.5);  // (3/4 + 1/2) / 2, without the article
  EXPECT_FALSE(row.contains("signature"));
}

TEST_F(ScoreTexts, PrintsSegments) {
  const Outcome outcome = score("rouge1,token_f1", hypotheses_, {references_}, {"--sentence-level"});
  EXPECT_EQ(outcome.out, "line 1: rouge1 0.8333, token_f1 75.0000\nline 2: rouge1 0.5000, token_f1 50.0000\n");
  const Outcome rows = score("bleu", hypotheses_, {references_}, {"--sentence-level", "--json"});
  const json second = json::parse(rows.out.substr(rows.out.find('\n')));
  EXPECT_EQ(second["line"], 2);
  EXPECT_GT(second["bleu"], 0);  // of the orders that two words have
}

TEST_F(ScoreTexts, ReadsColumnsOfRows) {
  const std::string rows = file("rows.jsonl",
                                "{\"text\": \"a b\", \"reference\": [\"c\", \"a b\"], \"gold\": \"x\"}\n\n"
                                "{\"text\": \"d\", \"reference\": \"d\", \"gold\": \"d\"}\n");
  EXPECT_THAT(score("chrf", rows, {rows}).out, HasSubstr("nrefs:var|case:mixed|eff:yes|nc:6|nw:0|space:no"));
  EXPECT_THAT(score("exact_match", rows, {rows}).out, HasSubstr("exact_match = 100.0000\n"));
  EXPECT_THAT(score("exact_match", rows, {rows}, {"--reference-column", "gold"}).out,
              HasSubstr("exact_match = 50.0000\n"));
  // Files of several kinds, and the standard input.
  EXPECT_THAT(score("exact_match", "-", {rows}, {}, "c\nd\n").out, HasSubstr("exact_match = 100.0000\n"));
  EXPECT_THAT(score("exact_match", "-", {rows}, {}, "c\nc\n").out, HasSubstr("exact_match = 50.0000\n"));
}

TEST_F(ScoreTexts, SeveralReferenceFiles) {
  const std::string other = file("other.txt", "another\nIt rains\n");
  EXPECT_THAT(score("exact_match", hypotheses_, {references_, other}).out, HasSubstr("exact_match = 50.0000\n"));
}

TEST_F(ScoreTexts, RefusesUnlikeFiles) {
  const std::string longer = file("longer.txt", "a\nb\nc\n\n");
  for (const bool swap : {false, true}) {
    const Outcome outcome = swap ? score("bleu", longer, {hypotheses_}) : score("bleu", hypotheses_, {longer});
    EXPECT_THAT(refused(outcome, 65), HasSubstr(hypotheses_ + " has 2 lines"));
    EXPECT_THAT(refused(outcome, 65), HasSubstr(longer + " has 4 lines"));
  }
  EXPECT_THAT(refused(score("bleu", path("none.txt"), {references_}), 66), HasSubstr("none.txt"));
  const std::string empty = file("empty.txt", "");
  EXPECT_THAT(refused(score("bleu", empty, {empty}), 65), HasSubstr("there is no text to score"));
}

TEST_F(ScoreTexts, RefusesBadTexts) {
  const std::string bytes = file("bytes.txt", "fine\nbro\xFFken\n");
  EXPECT_THAT(refused(score("bleu", hypotheses_, {bytes}), 65), HasSubstr(bytes + ":2: byte 4: the text is not UTF-8"));
  const std::string large = file("large.txt", std::string((size_t{4} << 20) + 1, 'a') + "\nb\n");
  EXPECT_THAT(refused(score("bleu", large, {references_}), 65), HasSubstr(large + ":1: a text of 4194305 bytes"));
  const std::string rows = file("rows.jsonl", "{\"text\": [\"a\", \"b\"], \"reference\": [], \"n\": 1}\n");
  EXPECT_THAT(refused(score("bleu", rows, {rows}), 65), HasSubstr("column 'reference' must be a text or a list"));
  const std::vector<std::string> number = {"--reference-column", "n"}, absent = {"--reference-column", "gold"};
  EXPECT_THAT(refused(score("bleu", rows, {rows}, number), 65), HasSubstr("column 'n' must be a text or a list"));
  EXPECT_THAT(refused(score("bleu", rows, {rows}, absent), 65), HasSubstr("no column 'gold', only text, reference, n"));
  const std::vector<std::string> texts = {"--reference-column", "text"};
  EXPECT_THAT(refused(score("bleu", rows, {rows}, texts), 65), HasSubstr("a hypothesis must be one text"));
}

TEST_F(ScoreTexts, RefusesOptionsWithoutEffect) {
  const auto message = [&](const std::string& metric, const std::vector<std::string>& options) {
    return refused(score(metric, hypotheses_, {references_}, options), 64);
  };
  EXPECT_THAT(message("blue", {}), HasSubstr("not 'blue'"));
  EXPECT_THAT(message("chrf,token_f1", {"--tokenize", "char"}),
              HasSubstr("--tokenize has no effect on --metric chrf,token_f1"));
  EXPECT_THAT(message("bleu", {"--tokenize", "zh"}), HasSubstr("--tokenize must be one of 13a, intl, none, char"));
  EXPECT_THAT(message("bleu", {"--smooth-value", "1"}), HasSubstr("--smooth-value needs"));
  EXPECT_THAT(message("reward", {}), HasSubstr("--hypotheses has no effect on --metric reward"));
  EXPECT_THAT(message("bleu", {"--model", "x"}), HasSubstr("are for --metric reward"));
  EXPECT_EQ(score("chrf,rouge1", hypotheses_, {references_}, {"--stem", "--lowercase"}).code, 0);
}

}  // namespace
}  // namespace llmtrain
