#include "core/deck/deck_value.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

namespace llmtrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Message of the error, or "no error".
template <class F>
std::string error_of(F parse) {
  try {
    parse();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}
std::string count_error(std::string_view text, ValueRange range = {}) {
  return error_of([&] { parse_count(text, range); });
}
std::string number_error(std::string_view text, ValueRange range = {}) {
  return error_of([&] { parse_number(text, range); });
}

TEST(DeckCount, TakesUnderscoresAndSuffixes) {
  EXPECT_EQ(parse_count("0", {}), 0);
  EXPECT_EQ(parse_count("-12", {}), -12);
  EXPECT_EQ(parse_count("10_000", {}), 10000);
  EXPECT_EQ(parse_count("3K", {}), 3000);
  EXPECT_EQ(parse_count("2M", {}), 2000000);
  EXPECT_EQ(parse_count("7G", {}), 7000000000);
  EXPECT_EQ(parse_count("1KiB", {}), 1024);
  EXPECT_EQ(parse_count("3MiB", {}), 3145728);
  EXPECT_EQ(parse_count("1_6GiB", {}), 17179869184);
  EXPECT_EQ(parse_count("9223372036854775807", {}), INT64_MAX);
}

TEST(DeckCount, RefusesWhatDoesNotEnd) {
  for (const char* text : {"", "x", "12abc", "1.5", "1e3", "0x10", "+1", "1 K", "1k", "1KB", "_1", "1_", "1__0", "-_1",
                           "--1", "1-", "K", "1,000"}) {
    EXPECT_THAT(count_error(text), HasSubstr("is not a whole number")) << text;
  }
  EXPECT_THAT(count_error("9223372036854775808"), HasSubstr("too large"));
  EXPECT_THAT(count_error("9223372037G"), HasSubstr("too large"));
  EXPECT_EQ(count_error("9223372036G"), "no error");
}

TEST(DeckCount, KeepsToItsRange) {
  EXPECT_THAT(count_error("0", at_least(1)), HasSubstr("must be >= 1"));
  EXPECT_EQ(count_error("1", at_least(1)), "no error");
  EXPECT_THAT(count_error("4", between(0, 3)), HasSubstr("must be 0 .. 3"));
  EXPECT_EQ(count_error("3", between(0, 3)), "no error");
}

TEST(DeckNumber, TakesDecimalsAndExponents) {
  EXPECT_EQ(parse_number("1e-3", {}), 1e-3);
  EXPECT_EQ(parse_number("-.5", {}), -0.5);
  EXPECT_EQ(parse_number("3", {}), 3);
  EXPECT_EQ(parse_number("0.1", {}), 0.1);
}

TEST(DeckNumber, RefusesWhatDoesNotEnd) {
  for (const char* text : {"", "x", "1e", "0.1x", "1,5", "nan", "inf", "-inf", "+1", "1 2", "0x1p3", "."}) {
    EXPECT_THAT(number_error(text), HasSubstr("is not a number")) << text;
  }
  EXPECT_THAT(number_error("1e999"), HasSubstr("outside the range of a double"));
  EXPECT_THAT(number_error("1", from_below(0, 1)), HasSubstr("0 .. 1 (1 excluded)"));
  EXPECT_EQ(number_error("0", from_below(0, 1)), "no error");
  EXPECT_THAT(number_error("0", above(0)), HasSubstr("must be > 0"));
}

TEST(DeckNumber, PrintsTheShortestTextOfTheSameNumber) {
  EXPECT_EQ(print_number(0.1), "0.1");
  EXPECT_EQ(print_number(3e-4), "0.0003");
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const double x = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 1000) - 500);
    EXPECT_EQ(parse_number(print_number(x), {}), x);
  }
}

TEST(DeckBool, IsSpelledOut) {
  EXPECT_TRUE(parse_bool("true"));
  EXPECT_FALSE(parse_bool("false"));
  for (const char* text : {"True", "yes", "1", "on", ""}) {
    EXPECT_THAT(error_of([&] { parse_bool(text); }), HasSubstr("neither true nor false"));
  }
}

TEST(DeckDuration, HasAUnit) {
  EXPECT_EQ(parse_duration("90s").seconds, 90);
  EXPECT_EQ(parse_duration("15m").seconds, 900);
  EXPECT_EQ(parse_duration("4h").seconds, 14400);
  for (const char* text : {"", "90", "s", "1d", "-1s", "1.5h", "1h30m", "9223372036854775807h"}) {
    EXPECT_NE(error_of([&] { parse_duration(text); }), "no error") << text;
  }
  for (const char* text : {"0s", "90s", "15m", "4h", "61m"}) EXPECT_EQ(print_duration(parse_duration(text)), text);
  EXPECT_EQ(print_duration({7200}), "2h");
}

TEST(DeckName, IsOneOfAListAndNamesTheNearest) {
  const std::array<std::string_view, 3> names = {"linear", "cosine", "constant"};
  EXPECT_EQ(parse_name("cosine", names), 1u);
  EXPECT_THAT(error_of([&] { parse_name("cosin", names); }), HasSubstr("did you mean cosine?"));
  EXPECT_THAT(error_of([&] { parse_name("Linear", names); }), HasSubstr("linear, cosine, constant"));
}

TEST(DeckText, ReadsEscapes) {
  EXPECT_EQ(parse_text("plain text"), "plain text");
  EXPECT_EQ(parse_text("a\\nb\\tc\\,d\\\\e\\sf"), "a\nb\tc,d\\e f");
  EXPECT_EQ(parse_text("\\x3b\\x41\\xc3\\xa4"), ";A\xC3\xA4");
  EXPECT_EQ(parse_text("*.t\\xt \\q \\"), "*.t\\xt \\q \\");  // unknown escapes stand for themselves
  EXPECT_THAT(error_of([] { parse_text(""); }), HasSubstr("has no value"));
  EXPECT_THAT(error_of([] { parse_text("a\\x00b"); }), HasSubstr("NUL"));
  EXPECT_THAT(error_of([] { parse_text("\\xff"); }), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of([] { parse_text("\"name\""); }), HasSubstr("write the text without them"));
}

TEST(DeckText, PrintsWhatParsesToTheSame) {
  std::mt19937 random(5);
  const std::string alphabet = "ab ,;#\\$\"\n\t{}=[]x0s\x7f\x01'";
  for (int i = 0; i < 20000; ++i) {
    std::string text(1 + random() % 8, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    EXPECT_EQ(parse_text(print_text(text)), text);
    const std::vector<std::string> list = {text, "b", text};
    const std::string printed = DeckValue<std::vector<std::string>>::print(list);
    EXPECT_EQ(DeckValue<std::vector<std::string>>::parse(printed, {}), list) << printed;
    EXPECT_EQ(printed.find_first_of("\n\t;#$"), std::string::npos) << printed;
  }
}

TEST(DeckList, SplitsAtCommas) {
  EXPECT_THAT(split_list(""), ElementsAre());
  EXPECT_THAT(split_list("one"), ElementsAre("one"));
  EXPECT_THAT(split_list(" one ,two,  three four "), ElementsAre("one", "two", "three four"));
  EXPECT_THAT(split_list("one,\ntwo\n, three"), ElementsAre("one", "two", "three"));
  EXPECT_THAT(split_list("\none,\ntwo"), ElementsAre("one", "two"));
  EXPECT_THAT(split_list("a\\,b, c\\\\, d"), ElementsAre("a\\,b", "c\\\\", "d"));
  EXPECT_THAT(error_of([] { split_list("a,,b"); }), HasSubstr("empty item"));
  EXPECT_THAT(error_of([] { split_list("a,"); }), HasSubstr("empty item"));
  EXPECT_THAT(error_of([] { split_list("a\npacking = none"); }), HasSubstr("'a' continues in an indented line"));
}

}  // namespace
}  // namespace llmtrain
