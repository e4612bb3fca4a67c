// The tables of settings: their deck keys exist, they have every setting of the programs' published classes
// (tests/reference/convert/), and docs/coming-from.md shows them.
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "converted.hpp"

namespace llmtrain::test {
namespace {

using convert::Entry;
using convert::System;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ConvertTables, NameKeysOfTheDeck) {
  Config scratch;
  DeckKeys keys;
  scratch.visit(keys);
  EXPECT_EQ(keys.find("schedule.nonsense"), nullptr);
  for (const System* const system : convert::systems()) {
    for (const Entry& entry : system->entries) {
      std::string targets(entry.target);
      std::erase(targets, ',');
      convert::each_word(targets, [&](std::string_view key) {
        if (key.starts_with("wandb.") && keys.names_in("wandb").empty()) return;  // a section of the sink
        EXPECT_NE(keys.find(key), nullptr) << system->name << ": " << entry.keys << ": " << key;
      });
      EXPECT_NE(entry.target.empty(), entry.effect == convert::Effect::mapped) << entry.keys;
      EXPECT_TRUE(!entry.note.empty() || entry.effect == convert::Effect::mapped) << entry.keys;
    }
  }
}

TEST(ConvertTables, HaveEveryPublishedSetting) {
  const nlohmann::json names = nlohmann::json::parse(read("tests/reference/convert/field_names.json")).at("names");
  int checked = 0;
  for (const auto& [group, list] : names.items()) {
    for (const System* const system : convert::systems()) {
      if (system->name != list[0].get<std::string>()) continue;
      EXPECT_EQ(convert::find_entry(*system, "no_such_setting", ""), nullptr);
      for (const std::string name : list[2]) {
        const bool known = convert::find_entry(*system, name, list[1].get<std::string>()) != nullptr ||
                           convert::has_entries_below(*system, name);
        EXPECT_TRUE(known) << group << " of " << system->title << ": " << name;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(ConvertTables, DefaultsAreEntries) {
  for (const System* const system : convert::systems()) {
    for (const convert::Default& one : system->defaults) {
      EXPECT_NE(convert::find_entry(*system, one.key, one.task), nullptr) << system->name << ": " << one.key;
    }
  }
}

// The end of docs/coming-from.md is generated: LLMTRAIN_UPDATE_DOCS=1 test_convert --gtest_filter=ConvertTables.*
// writes it.
TEST(ConvertTables, AreInTheDocumentation) {
  const std::string path = "docs/coming-from.md",
                    mark = "<!-- Generated from the tables of llmtool convert: do not edit below. -->\n";
  std::string page = read(path);
  const size_t at = page.find(mark);
  ASSERT_NE(at, std::string::npos) << path << " has no mark";
  const std::string generated = page.substr(0, at + mark.size()) + convert::tables_of_keys();
  if (std::getenv("LLMTRAIN_UPDATE_DOCS") != nullptr) std::ofstream(path) << generated;
  EXPECT_TRUE(read(path) == generated) << path << " is out of date: LLMTRAIN_UPDATE_DOCS=1 writes it anew";
}

}  // namespace
}  // namespace llmtrain::test
