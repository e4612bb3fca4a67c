#include "core/deck/deck.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace llmtrain {
namespace {

enum class Colour : uint8_t { red, green };

}  // namespace

template <>
inline constexpr auto enum_names<Colour> = name_list("red", "green");

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Toy {
  int64_t size = 8;
  int64_t blocks = 0;
  double rate = 0.5;
  bool loud = false;
  Colour colour = Colour::red;
  std::string title = "none";
  std::vector<std::string> files;

  void visit(DeckKeys& keys) {
    keys.section("shape", "How large.");
    keys.key("size", size, {.unit = "rows", .range = at_least(1), .doc = "Rows."});
    keys.key("blocks", blocks,
             {.unit = "blocks", .range = at_least(1), .doc = "Instead of size.", .automatic = "by size"});
    keys.section("look", "How it looks.");
    keys.key("rate", rate, {.range = between(0, 1), .doc = "Rate of it."});
    keys.key("loud", loud, {.doc = "Loud | or not."});
    keys.key("colour", colour, {.doc = "Colour."});
    keys.key("title", title, {.doc = "Title."});
    keys.key("files", files, {.doc = "Files."});
  }
};

constexpr std::array<DeckLoader::ExclusiveKeys, 1> exclusive = {{{"shape.size", "shape.blocks"}}};

struct Loaded {
  Toy toy;
  std::string errors = "no error";
  Provenance provenance;
  std::vector<std::string> notes;
};

Loaded load(std::string_view text, const std::vector<std::string>& arguments = {}) {
  Loaded result;
  DeckKeys keys;
  result.toy.visit(keys);
  DeckLoader loader(keys, "toy.ini");
  loader.load(text, arguments, exclusive);
  try {
    loader.finish();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    result.errors = error.what();
  }
  result.provenance = loader.provenance();
  result.notes = loader.notes();
  return result;
}

std::string written(Loaded& loaded) {
  DeckKeys keys;
  loaded.toy.visit(keys);
  return write_deck(keys, loaded.provenance, "toy");
}

TEST(DeckLoader, FillsTheFields) {
  const Loaded a = load(
      "[shape]\nsize = 2K\n[look]\nrate = .25\nloud = true\ncolour = green\ntitle = My title\nfiles = a, b,\n  c\n");
  EXPECT_EQ(a.errors, "no error");
  EXPECT_EQ(a.toy.size, 2000);
  EXPECT_EQ(a.toy.rate, 0.25);
  EXPECT_TRUE(a.toy.loud);
  EXPECT_EQ(a.toy.colour, Colour::green);
  EXPECT_EQ(a.toy.title, "My title");
  EXPECT_THAT(a.toy.files, ElementsAre("a", "b", "c"));
  EXPECT_EQ(a.provenance.at("shape.size").origin, Origin::deck);
  EXPECT_EQ(a.provenance.where("look.title"), "toy.ini:7: look.title");
  EXPECT_EQ(a.provenance.where("shape.blocks"), "toy.ini: shape.blocks");
}

TEST(DeckLoader, LetsTheCommandLineWin) {
  const Loaded a = load("[shape]\nsize = 2\n", {"shape.size=3", "look.title=x"});
  EXPECT_EQ(a.errors, "no error");
  EXPECT_EQ(a.toy.size, 3);
  EXPECT_EQ(a.provenance.at("shape.size").origin, Origin::command_line);
  EXPECT_EQ(a.provenance.where("look.title"), "command line: look.title");
  // The replaced value need not be valid.
  EXPECT_EQ(load("[shape]\nsize = ${LLMTRAIN_TEST_UNSET}\n", {"shape.size=3"}).errors, "no error");
}

TEST(DeckLoader, LetsTheLastOfEqualArgumentsWin) {
  const Loaded twice = load("[shape]\nsize = 2\n", {"shape.size=x", "look.title=x", "shape.size=4"});
  EXPECT_EQ(twice.errors, "no error") << "the replaced value need not be valid";
  EXPECT_EQ(twice.toy.size, 4);
  EXPECT_THAT(twice.notes, ElementsAre("command line: shape.size = x: the later shape.size = 4 replaces it"));
  EXPECT_THAT(load("[shape]\nsize = 2\n", {"shape.size=4"}).notes, ElementsAre());
  EXPECT_EQ(load("", {"shape.size=4", "shape.size=x"}).errors, "command line: shape.size: 'x' is not a whole number");
  EXPECT_EQ(load("[shape]\nsize = 2\nsize = 2\n").errors, "toy.ini:3: shape.size: is already given in line 2");
}

TEST(DeckLoader, HandlesExclusiveKeys) {
  const Loaded replaced = load("[shape]\nsize = 2\n", {"shape.blocks=3"});
  EXPECT_EQ(replaced.errors, "no error");
  EXPECT_EQ(replaced.toy.size, 8) << "the default again";
  EXPECT_EQ(replaced.toy.blocks, 3);
  EXPECT_FALSE(replaced.provenance.given("shape.size"));
  EXPECT_EQ(load("[shape]\nblocks = 2\n", {"shape.size=3"}).toy.blocks, 0);
  EXPECT_EQ(load("[shape]\nblocks = 2\nsize = 2\n").errors,
            "toy.ini:3: shape.size: cannot be combined with shape.blocks: give one of them");
  const Loaded last = load("[shape]\nsize = 3\n", {"shape.size=1", "shape.blocks=2"});
  EXPECT_EQ(last.errors, "no error");
  EXPECT_FALSE(last.provenance.given("shape.size"));
  EXPECT_EQ(last.toy.blocks, 2);
  EXPECT_THAT(last.notes, ElementsAre("command line: shape.size = 1: the later shape.blocks replaces it"));
  EXPECT_EQ(load("[shape]\nblocks = 2\nsize = 2\n", {"shape.blocks=1"}).errors, "no error");
}

TEST(DeckLoader, NamesTheNearest) {
  EXPECT_EQ(load("[shap]\nsize = 1\n").errors, "toy.ini:1: shap: no such section (did you mean shape?)");
  EXPECT_EQ(load("[shape]\nsiez = 1\n").errors, "toy.ini:2: shape.siez: no such key (did you mean size?)");
  EXPECT_EQ(load("[shape]\ntitle = 1\n").errors, "toy.ini:2: shape.title: no such key (did you mean look.title?)");
  EXPECT_EQ(load("", {"look.colur=red"}).errors, "command line: look.colur: no such key (did you mean colour?)");
  EXPECT_EQ(load("", {"lok.colour=red"}).errors, "command line: lok.colour: no such section (did you mean look?)");
  EXPECT_THAT(load("[look]\ncolour = gren\n").errors, HasSubstr("did you mean green?"));
}

TEST(DeckLoader, CollectsEverythingInTheOrderOfTheLines) {
  EXPECT_EQ(load("[look]\nrate = 2\nloud = maybe\n[shape]\nsize = 0\nsize = 1\n[look]\ntitle = a\n  b\n",
                 {"shape.size=x", "y"})
                .errors,
            "toy.ini:2: look.rate: '2' is out of range: must be 0 .. 1\n"
            "toy.ini:3: look.loud: 'maybe' is neither true nor false\n"
            "toy.ini:6: shape.size: is already given in line 5\n"
            "toy.ini:7: look: the section is already in line 1: merge the two\n"
            "toy.ini:8: look.title: 'a' continues in an indented line, which only a list may do: begin keys in the "
            "first column "
            "(a text "
            "continues after a backslash at the end of the line)\n"
            "command line: y: an argument after the deck must be section.key=value\n"
            "command line: shape.size: 'x' is not a whole number");
  EXPECT_EQ(load("[shape]\nsize =\n").errors, "toy.ini:2: shape.size: has no value");
  EXPECT_EQ(load("[look]\nfiles =\n").errors, "no error");
  EXPECT_EQ(load("[look]\ntitle = ${LLMTRAIN_TEST_UNSET}\n").errors,
            "toy.ini:2: look.title: the environment variable LLMTRAIN_TEST_UNSET is not set");
}

TEST(DeckLoader, ChecksAcrossSoundKeysOnly) {
  Toy toy;
  DeckKeys keys;
  toy.visit(keys);
  DeckLoader loader(keys, "toy.ini");
  loader.load("[shape]\nsize = 7\n[look]\nrate = x\n", {}, {});
  loader.check(toy.size % 2 == 0, {"shape.size"}, "is odd");
  loader.check(false, {"shape.blocks", "look.rate"}, "must not be seen: the rate is unknown");
  loader.unused("shape.size", "no effect");
  EXPECT_THAT(loader.notes(), ElementsAre("toy.ini:2: shape.size: no effect"));
  try {
    loader.finish();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "toy.ini:2: shape.size: is odd\ntoy.ini:4: look.rate: 'x' is not a number");
  }
}

TEST(WriteDeck, IsADeckOfTheSameValues) {
  std::mt19937 random(7);
  const std::string alphabet = "abc  ,;#\\$\"\n\t{}=[]\xC3";
  for (int i = 0; i < 500; ++i) {
    const auto text = [&] {
      std::string s(1 + random() % 400, 'x');
      for (char& c : s) c = alphabet[random() % alphabet.size()];
      for (size_t k = 0; k < s.size(); ++k) {
        if (s[k] == '\xC3') s.insert(++k, 1, '\xA4');  // a letter of two bytes
      }
      return s;
    };
    Loaded a;
    a.toy.size = 1 + static_cast<int64_t>(random());
    a.toy.rate = static_cast<double>(random()) / 4294967296.0;
    a.toy.loud = random() % 2 == 1;
    a.toy.title = text();
    for (size_t n = random() % 6; n > 0; --n) a.toy.files.push_back(text());
    a.provenance.set("shape.blocks", Origin::unused, "size is given");
    const std::string deck = written(a);
    for (size_t begin = 0; begin < deck.size();) {
      const size_t end = deck.find('\n', begin);
      ASSERT_LE(end - begin, max_deck_line);
      begin = end + 1;
    }
    Loaded b = load(deck);
    ASSERT_EQ(b.errors, "no error") << deck;
    EXPECT_EQ(b.toy.size, a.toy.size);
    EXPECT_EQ(b.toy.rate, a.toy.rate);
    EXPECT_EQ(b.toy.loud, a.toy.loud);
    EXPECT_EQ(b.toy.title, a.toy.title) << deck;
    EXPECT_EQ(b.toy.files, a.toy.files) << deck;
    EXPECT_FALSE(b.provenance.given("shape.blocks"));
  }
}

/// "title =" cannot be read again.
TEST(WriteDeck, LeavesOutATextThatIsEmpty) {
  Loaded a = load("[shape]\nsize = 2\n");
  a.provenance.set("shape.blocks", Origin::unused, "by size");
  a.toy.title.clear();
  EXPECT_THAT(written(a), HasSubstr("# title: none\n"));
  EXPECT_EQ(load(written(a)).errors, "no error");
  EXPECT_THAT(load("[look]\ntitle =\n").errors, HasSubstr("has no value"));
}

TEST(WriteDeck, SaysWhereValuesComeFrom) {
  Loaded a = load("[shape]\nsize = 2\n", {"look.rate=1"});
  a.provenance.set("shape.blocks", Origin::unused, "by size");
  a.provenance.set("look.title", Origin::family);
  a.provenance.set("look.colour", Origin::automatic, "the device's");
  EXPECT_EQ(written(a),
            "# toy\n\n"
            "[shape]\n"
            "size = 2                                     ; deck\n"
            "# blocks: by size\n"
            "\n[look]\n"
            "rate = 1                                     ; command line\n"
            "loud = false                                 ; default\n"
            "colour = red                                 ; automatic: the device's\n"
            "title = none                                 ; family\n"
            "files =                                      ; default\n");
}

TEST(DeckHelp, ShowsSectionsAndKeys) {
  Toy toy;
  DeckKeys keys;
  toy.visit(keys);
  EXPECT_EQ(deck_help(keys, "shape.size"),
            "[shape]\n  size                        count (rows), >= 1  [8]\n      Rows.\n");
  EXPECT_THAT(deck_help(keys, "look"), HasSubstr("colour                      red / green  [red]"));
  EXPECT_EQ(deck_help(keys, "look").find("size"), std::string::npos);
  EXPECT_THAT(deck_help(keys, ""), HasSubstr("blocks                      count (blocks), >= 1  [by size]"));
  for (const auto& [topic, nearest] :
       {std::pair("shap", "shape"), std::pair("shape.siz", "size"), std::pair("lok.rate", "look")}) {
    try {
      deck_help(keys, topic);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::command_line);
      EXPECT_THAT(error.what(), HasSubstr(std::string("did you mean ") + nearest));
    }
  }
}

TEST(DeckManual, IsATablePerSection) {
  Toy toy;
  DeckKeys keys;
  toy.visit(keys);
  const std::string manual = deck_manual(keys);
  EXPECT_THAT(manual,
              ::testing::AllOf(HasSubstr("\n## Fine-tuning\n"), HasSubstr("\n### [look]\n\nHow it looks.\n\n| key |")));
  EXPECT_THAT(manual, HasSubstr("| `loud` | true / false |  | false | Loud \\| or not. |\n"));
}

}  // namespace
}  // namespace llmtrain
