#include "core/deck/deck_parser.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "line section.name=text" of every key; newlines as |.
std::vector<std::string> keys_of(std::string_view text, DeckErrors& errors) {
  std::vector<std::string> keys;
  for (const RawKey& key : read_deck_text(text, errors).keys) {
    std::string value = key.text;
    for (char& c : value) c = c == '\n' ? '|' : c;
    keys.push_back(std::to_string(key.line) + " " + key.section + "." + key.name + "=" + value);
  }
  return keys;
}

std::vector<std::string> keys_of(std::string_view text) {
  DeckErrors errors("d.ini");
  std::vector<std::string> keys = keys_of(text, errors);
  EXPECT_NO_THROW(errors.raise());
  return keys;
}

std::string errors_of(std::string_view text) {
  DeckErrors errors("d.ini");
  read_deck_text(text, errors);
  try {
    errors.raise();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}

TEST(DeckReader, ReadsKeysWithTheirLines) {
  EXPECT_THAT(keys_of("# deck\n\n[run]\nname = a b \n\n; c\nseed=1\n[model] ; shape\nd_model =  2\n"),
              ElementsAre("4 run.name=a b", "7 run.seed=1", "9 model.d_model=2"));
  EXPECT_THAT(keys_of(""), ElementsAre());
  EXPECT_THAT(keys_of("[a]\nx = 1"), ElementsAre("2 a.x=1"));                    // no newline at the end
  EXPECT_THAT(keys_of("\xEF\xBB\xBF[a]\r\nx = 1\r\n"), ElementsAre("2 a.x=1"));  // byte order mark, DOS line ends
  EXPECT_THAT(keys_of("[a]\nx =\n"), ElementsAre("2 a.x="));
  EXPECT_THAT(keys_of("[a]\nx = b = c:d\n"), ElementsAre("2 a.x=b = c:d"));
  EXPECT_THAT(keys_of("[a]\n  x = 1\n"), ElementsAre("2 a.x=1"));  // indented, but there is no key to continue
}

TEST(DeckReader, EndsValuesAtASemicolonAfterWhiteSpace) {
  EXPECT_THAT(keys_of("[a]\nx = 7 ; note\ny = 7;8\nz = a\t;b\nw = ;\n"),
              ElementsAre("2 a.x=7", "3 a.y=7;8", "4 a.z=a", "5 a.w="));
}

TEST(DeckReader, JoinsIndentedLines) {
  EXPECT_THAT(keys_of("[a]\nx = 1, ; one\n  2,\n# in between\n\n\t3 ; three\ny = 4\n"),
              ElementsAre("2 a.x=1,|2,|3", "7 a.y=4"));
  EXPECT_THAT(keys_of("[a]\nx = ab\\\n   cd\\ ; e\n  f\ny = \\\\\n"), ElementsAre("2 a.x=abcdf", "5 a.y=\\\\"));
  EXPECT_THAT(keys_of("[a]\nx = c\\\\\n  d\n"), ElementsAre("2 a.x=c\\\\|d"));  // an escaped backslash joins nothing
  EXPECT_THAT(keys_of("[a]\nx = 1\n [b]\n"), ElementsAre("2 a.x=1|[b]"));
}

TEST(DeckReader, KeepsLongNamesWhole) {  // inih cuts both at 50 bytes
  const std::string name(80, 'n'), section(80, 's');
  EXPECT_THAT(keys_of("[" + section + "]\n" + name + " = 1\n"), ElementsAre("2 " + section + "." + name + "=1"));
}

TEST(DeckReader, SaysHowCommentsBegin) {
  EXPECT_THAT(errors_of("[a]\nx = 7 # note\n"), HasSubstr("d.ini:2: a.x: '7 # note' continues after its value: inline "
                                                          "comments begin with ';'"));
  EXPECT_THAT(errors_of("[a]\nx = # note\n"), HasSubstr("d.ini:2: a.x: '# note'"));
  EXPECT_THAT(errors_of("[a]\nx = 1,\n  2 # note\n"), HasSubstr("d.ini:3: a.x: '2 # note'"));
  EXPECT_THAT(errors_of("[a] # note\n"), HasSubstr("d.ini:1: '# note' follows the section header"));
  EXPECT_EQ(errors_of("[a]\nx = b#c ; # d\n"), "no error");
}

TEST(DeckReader, RefusesWhatIsNoDeck) {
  EXPECT_THAT(errors_of("x = 1\n"), HasSubstr("d.ini:1: x: the key is before the first [section]"));
  EXPECT_THAT(errors_of("[a]\nnonsense\n"), HasSubstr("d.ini:2: 'nonsense' is neither [section] nor key = value"));
  EXPECT_THAT(errors_of("[a]\nx : 1\n"), HasSubstr("d.ini:2: 'x : 1' is neither"));
  EXPECT_THAT(errors_of("[a]\n= 1\n"), HasSubstr("d.ini:2:"));
  EXPECT_THAT(errors_of("[a\nx = 1\n"), HasSubstr("d.ini:1: a section header must be [name]"));
  EXPECT_THAT(errors_of("[]\n"), HasSubstr("d.ini:1: a section header must be [name]"));
  EXPECT_THAT(errors_of(std::string("[a]\nx = 1\0 2\n", 13)), HasSubstr("d.ini:2: the line contains a NUL"));
  EXPECT_THAT(errors_of("[a]\nx = \x1b[0m\n"), HasSubstr("d.ini:2: the line contains a NUL or another control"));
  EXPECT_THAT(errors_of("[a]\nx = \xFF\n"), HasSubstr("d.ini:2: the line is not UTF-8"));
  EXPECT_THAT(errors_of("# caf\xE9\n"), HasSubstr("d.ini:1: the line is not UTF-8"));
}

TEST(DeckReader, LimitsLinesAndFiles) {
  const std::string fits = "x = " + std::string(195, 'v');
  EXPECT_THAT(keys_of("[a]\n" + fits + "\n"), ElementsAre("2 a.x=" + std::string(195, 'v')));
  EXPECT_THAT(keys_of("[a]\n" + fits + "\ny = 1\n"),
              ElementsAre("2 a.x=" + std::string(195, 'v'), "3 a.y=1"));  // nothing after a full line is lost
  EXPECT_THAT(keys_of("[a]\nx = 1,\n " + std::string(198, 'v') + "\ny = 1\n"),
              ElementsAre("2 a.x=1,|" + std::string(198, 'v'), "4 a.y=1"));
  EXPECT_THAT(keys_of("[a]\n" + fits + "\r\n"), ElementsAre("2 a.x=" + std::string(195, 'v')));
  EXPECT_THAT(errors_of("[a]\n" + fits + "v\n"), HasSubstr("d.ini:2: the line has 200 bytes"));
  EXPECT_THAT(errors_of("[a]\nx = 1" + std::string(300, ' ') + "\ny = 1\n"),
              HasSubstr("d.ini:2: the line has 305 bytes"));
  const std::string comment = "# " + std::string(125, 'c') + "\n";  // 128 bytes
  std::string large;
  while (large.size() < max_deck_bytes) large += comment;
  EXPECT_EQ(errors_of(large), "no error");
  EXPECT_THAT(errors_of(large + "#"), HasSubstr("d.ini: a deck has at most 1 MiB"));
}

TEST(DeckReader, CollectsAllErrorsAndPassesOverTheirRest) {
  EXPECT_EQ(errors_of("[a]\nx = 1 # n\n  2\n  3\nbad\n[b\ny = 1\n[c]\nz = 1\nworse\n"),
            "d.ini:2: a.x: '1 # n' continues after its value: inline comments begin with ';' after white space "
            "(write \\x23 for a # in a text)\n"
            "d.ini:5: 'bad' is neither [section] nor key = value\n"
            "d.ini:6: a section header must be [name]\n"
            "d.ini:10: 'worse' is neither [section] nor key = value");
  DeckErrors errors("d.ini");
  EXPECT_THAT(keys_of("[a]\nx = 1\ny = 2 # n\n   z = 3\nw = 4\n", errors), ElementsAre("2 a.x=1", "5 a.w=4"));
}

TEST(DeckReader, CountsErrorsBeyondFifty) {
  std::string text = "[a]\n";
  for (int i = 0; i < 70; ++i) text += "bad\n";
  const std::string errors = errors_of(text);
  EXPECT_THAT(errors, HasSubstr("d.ini:51: 'bad'"));
  EXPECT_THAT(errors, HasSubstr("\nand 20 more"));
  EXPECT_EQ(errors.find("d.ini:52:"), std::string::npos);
}

TEST(DeckReader, SurvivesAnything) {
  std::mt19937 random(11);
  const std::string alphabet = "[]=;# \t\n\r\\,$\x80\xC3\xA4.xyab01\"";
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    DeckErrors errors("d.ini");
    for (const RawKey& key : read_deck_text("[s]\n" + text, errors).keys) {
      EXPECT_FALSE(key.name.empty());
      EXPECT_FALSE(key.section.empty());
      EXPECT_NE(key.line, 0);
    }
  }
}

TEST(DeckEnvironment, Expands) {
  ASSERT_EQ(setenv("LLMTRAIN_TEST_A", "one; two", 1), 0);
  ASSERT_EQ(setenv("LLMTRAIN_TEST_B", "1\n2", 1), 0);
  ASSERT_EQ(unsetenv("LLMTRAIN_TEST_C"), 0);
  EXPECT_EQ(expand_environment("x/${LLMTRAIN_TEST_A}/y${LLMTRAIN_TEST_A}"), "x/one; two/yone; two");
  EXPECT_EQ(expand_environment("${LLMTRAIN_TEST_B}"), "1\\n2");
  EXPECT_EQ(expand_environment("$HOME $ {x} }"), "$HOME $ {x} }");
  EXPECT_THROW(expand_environment("${LLMTRAIN_TEST_C}"), UserError);
  for (const char* text : {"${", "${}", "${A", "${A B}", "${A-b}"})
    EXPECT_THROW(expand_environment(text), UserError) << text;
}

TEST(DeckOverrides, AreSectionKeyValue) {
  DeckErrors errors("d.ini");
  const std::vector<std::string> good = {"run.seed=1", "a.b= x = y ", "a.c=", "a.d=1\n2"};
  std::vector<std::string> keys;
  for (const RawKey& key : read_overrides(good, errors)) {
    EXPECT_EQ(key.line, DeckErrors::command_line);
    keys.push_back(key.section + "|" + key.name + "|" + key.text);
  }
  EXPECT_THAT(keys, ElementsAre("run|seed|1", "a|b|x = y", "a|c|", "a|d|1\\n2"));
  EXPECT_TRUE(errors.empty());
  for (const char* text : {"seed=1", "run.seed", ".seed=1", "run.=1", "=", "x", "a=b.c"}) {
    DeckErrors refused("d.ini");
    EXPECT_TRUE(read_overrides(std::vector<std::string>{text}, refused).empty()) << text;
    EXPECT_FALSE(refused.empty()) << text;
  }
}

}  // namespace
}  // namespace llmtrain
