#include "corpus/grammar.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.hpp"
#include "corpus/grammar_reader.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Contains every kind of item: weights, exceptions, joined variables, agreement, words that are not stored, nested
/// rules, and rules that one path skips.
GrammarSource small_source() {
  return {
      {{"name", "name he", {"Al/he", "Bo/he", "Cleo/she"}},
       {"count", "word number", {"one/one", "two/many", "three/many"}},
       {"share", "count left left_number", {"one/no/many", "two/one/one", "two/no/many", "three/two/many"}},
       {"thing", "one many", {"ox/oxen", "egg/eggs"}},
       {"feeling", "feeling", {"sad", "glad"}}},
      {{"a", "name"},
       {"b", "name", "a"},
       {"c", "name", "a b"},
       {"n", "count"},
       {"k", "share", "", "n"},
       {"x", "thing"}},
      {{"text", {{1, "<who> had [n] [x:n.number]. <end>"}}},
       {"who", {{2, "Dear [a]"}, {1, "Old [a] and [b], [c]"}}},
       {"end", {{3, "Then {a.he} lost [k.left] {x:k.left_number}<mood>"}, {4, "So [=feeling] {a}"}, {1, "No {x.one}"}}},
       {"mood", {{1, "."}, {2, " and was [=feeling], [=feeling]!"}}}},
  };
}

struct Enumeration {
  std::map<std::string, double> probability;  // by text
  double derivations = 0;
};

/// Returns all texts with their probabilities, independently of the grammar's arithmetic: writes a text for every
/// sequence of random numbers that the grammar requests.
Enumeration enumerate(const Grammar& grammar) {
  Enumeration all;
  std::vector<uint32_t> script, ranges;
  do {
    ranges.clear();
    double probability = 1;
    const auto below = [&](uint32_t n) {
      ranges.push_back(n);
      if (script.size() < ranges.size()) script.push_back(0);
      probability /= n;
      return script[ranges.size() - 1];
    };
    all.probability[grammar.write(below)] += probability;
    ++all.derivations;
    script.resize(ranges.size());
    while (!script.empty() && script.back() + 1 == ranges[script.size() - 1]) script.pop_back();
    if (!script.empty()) ++script.back();
  } while (!script.empty());
  return all;
}

double entropy(const std::map<std::string, double>& probability) {
  double sum = 0;
  for (const auto& [text, p] : probability) sum -= p * std::log(p);
  return sum;
}

TEST(Grammar, AgreesWithTheEnumerationOfAllTexts) {
  const Grammar grammar(small_source());
  const Enumeration all = enumerate(grammar);
  double total = 0, length = 0;
  int64_t longest = 0;
  std::map<std::string, double> first;
  for (const auto& [text, p] : all.probability) {
    total += p;
    length += p * static_cast<double>(text.size());
    longest = std::max(longest, static_cast<int64_t>(text.size()));
    first[text.substr(0, 1)] += p;
    EXPECT_NEAR(GrammarReader::log_probability(grammar, text), std::log(p), 1e-12) << text;
  }
  EXPECT_GT(all.probability.size(), 500u);
  EXPECT_NEAR(total, 1.0, 1e-12);
  EXPECT_NEAR(grammar.entropy(), entropy(all.probability), 1e-12);
  EXPECT_NEAR(grammar.expected_length(), length, 1e-11);
  EXPECT_NEAR(grammar.first_character_entropy(), entropy(first), 1e-12);
  EXPECT_GE(GrammarReader::longest(grammar), longest);
  EXPECT_LE(GrammarReader::longest(grammar), longest + 8);  // a bound: not all long words occur together
}

TEST(Grammar, KnowsASmallCaseInClosedForm) {
  // A fair coin, then one of three names, then another of them: ln 2 + ln 3 + ln 2.
  const Grammar grammar({{{"name", "name", {"u", "v", "w"}}},
                         {{"a", "name"}, {"b", "name", "a"}},
                         {{"text", {{1, "<coin>[a][b]{a}"}}}, {"coin", {{5, "0"}, {5, "1"}}}}});
  EXPECT_NEAR(grammar.entropy(), std::log(12.0), 1e-14);
  EXPECT_NEAR(grammar.first_character_entropy(), std::log(2.0), 1e-14);
  EXPECT_NEAR(GrammarReader::log_probability(grammar, "1wuw"), -std::log(12.0), 1e-14);
  EXPECT_EQ(grammar.expected_length(), 4.0);
  EXPECT_EQ(GrammarReader::longest(grammar), 4);
}

TEST(Grammar, DoesNotReadForeignText) {
  const Grammar grammar(small_source());
  const std::string text = "Dear Al had two oxen. Then he lost one ox.";
  EXPECT_TRUE(std::isfinite(GrammarReader::log_probability(grammar, text)));
  for (const std::string& other : {std::string(), text + ".", text.substr(0, text.size() - 1),
                                   std::string("Dear Al had two ox. Then he lost one ox."),
                                   std::string("Dear Al had two oxen. Then she lost one ox."),
                                   std::string("Dear Al had two oxen. Then he lost two oxen."),
                                   std::string("Old Al and Al, Bo had one ox. So sad Al")}) {
    EXPECT_EQ(GrammarReader::log_probability(grammar, other), -INFINITY) << other;
  }
}

GrammarSource with_rules(std::vector<GrammarRule> rules) {
  GrammarSource source = small_source();
  source.rules = std::move(rules);
  return source;
}

void expect_refused(const GrammarSource& source, const std::string& reason) {
  EXPECT_THAT([&] { Grammar{source}; }, ThrowsMessage<Error>(HasSubstr(reason)));
}

TEST(Grammar, RefusesWhatCouldBeAmbiguous) {
  expect_refused(with_rules({{"text", {{1, "a[=feeling]"}, {1, "ab"}}}}), "'a' begins 'ab'");
  expect_refused(with_rules({{"text", {{1, "a"}, {2, "a"}}}}), "'a' begins 'a'");
  expect_refused(with_rules({{"text", {{1, "a"}, {1, "[a]"}}}}), "must begin with literal");
  expect_refused(with_rules({{"text", {{1, "a"}, {1, ""}}}}), "must begin with literal");
  GrammarSource words = with_rules({{"text", {{1, "[x.many]"}}}});
  words.lists[3].entries = {"ox/oxen", "cow/oxen"};
  expect_refused(words, "'oxen' begins 'oxen'");
  words.rules = {{"text", {{1, "[x]"}}}};
  EXPECT_NO_THROW(Grammar{words});
}

TEST(Grammar, RefusesVariablesWithoutAValue) {
  expect_refused(with_rules({{"text", {{1, "{a}"}}}}), "uses 'a' where it may have no value");
  expect_refused(with_rules({{"text", {{1, "[b]"}}}}), "uses 'a'");
  expect_refused(with_rules({{"text", {{1, "[k.left]"}}}}), "uses 'n'");
  expect_refused(with_rules({{"text", {{1, "[x:n.number]"}}}}), "uses 'n'");
  expect_refused(with_rules({{"text", {{1, "[a][a]"}}}}), "chooses 'a' a second time");
  expect_refused(with_rules({{"text", {{1, "<maybe>{a}"}}}, {"maybe", {{1, "x[a]"}, {1, "y"}}}}), "uses 'a'");
  expect_refused(with_rules({{"text", {{1, "<maybe>[a]"}}}, {"maybe", {{1, "x[a]"}, {1, "y"}}}}), "a second time");
}

TEST(Grammar, RefusesMistakesInTheData) {
  expect_refused(with_rules({}), "no rules");
  expect_refused(with_rules({{"text", {}}}), "is empty");
  expect_refused(with_rules({{"text", {{0, "a"}}}}), "weight 0");
  expect_refused(with_rules({{"text", {{1, "<text>"}}}}), "only later rules");
  expect_refused(with_rules({{"text", {{1, "<gone>"}}}}), "no rule is named 'gone'");
  expect_refused(with_rules({{"text", {{1, "[gone]"}}}}), "no variable is named 'gone'");
  expect_refused(with_rules({{"text", {{1, "[=gone]"}}}}), "no list is named 'gone'");
  expect_refused(with_rules({{"text", {{1, "[a.gone]"}}}}), "has no form 'gone'");
  expect_refused(with_rules({{"text", {{1, "[a"}}}}), "unpaired bracket");
  expect_refused(with_rules({{"text", {{1, "a]"}}}}), "unpaired bracket");
  expect_refused(with_rules({{"text", {{1, "[n][x:n]"}}}}), "is not x:n.form");
  GrammarSource forms = small_source();
  forms.lists[3].entries = {"ox"};
  expect_refused(forms, "does not have every form");
  GrammarSource joined = small_source();
  joined.lists[2].entries.pop_back();
  expect_refused(joined, "no value joined to 'three'");
}

}  // namespace
}  // namespace llmtrain
