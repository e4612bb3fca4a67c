// The tables of settings: their deck keys exist, they have every setting of the programs' published classes
// (tests/reference/convert/), and docs/settings shows them.
#include "convert/tables.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
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
  for (const System& system : convert::systems()) {
    for (const Entry& entry : system.entries) {
      std::string targets(entry.target);
      std::erase(targets, ',');
      convert::each_word(targets, [&](std::string_view key) {
        if (key.starts_with("wandb.") && keys.names_in("wandb").empty()) return;  // a section of the sink
        EXPECT_NE(keys.find(key), nullptr) << system.name << ": " << entry.keys << ": " << key;
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
    for (const System& system : convert::systems()) {
      if (system.name != list[0].get<std::string>()) continue;
      EXPECT_EQ(convert::find_entry(system, "no_such_setting", ""), nullptr);
      for (const std::string name : list[2]) {
        const bool known = convert::find_entry(system, name, list[1].get<std::string>()) != nullptr ||
                           convert::has_entries_below(system, name);
        EXPECT_TRUE(known) << group << " of " << system.title << ": " << name;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

std::string fault_of(const std::string& text) {
  convert::System system;
  system.name = "own";
  try {
    convert::read_table(text, convert::System{}, {}, system);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ConvertTables, NameTheLineOfAFault) {
  const std::string head = "# Own.\ntitle = Own 1\n[lists]\nbits = 4\n    8\n[keys]\n",
                    in_line_7 = "src/convert/tables/own.txt:7: ";
  EXPECT_EQ(fault_of(head + "b c (sft)\n    -> fact bits -> rule set_pattern lora.r -> lora.r: {bits}; a note\n"), "");
  EXPECT_EQ(fault_of(head + "bits quantization.bits\n"), in_line_7 + "\"->\" is missing");
  EXPECT_EQ(fault_of(head + "bits -> bits\n"), in_line_7 + "bits: must be keys of a deck");
  EXPECT_EQ(fault_of(head + "bits -> quantization.bits: {bit}\n"), in_line_7 + "no list bit");
  EXPECT_EQ(fault_of(head + "bits -> rule set_bits -> quantization.bits\n"), in_line_7 + "no rule set_bits alone");
  EXPECT_EQ(fault_of(head + "bits -> rule set_betas 1 -> quantization.bits\n"),
            in_line_7 + "no rule set_betas of words");
  EXPECT_EQ(fault_of(head + "bits -> no effect:\n"), in_line_7 + "there is no reason");
  EXPECT_EQ(fault_of(head + "[includes]\n* = other\n"), "src/convert/tables/own.txt:8: no table other");
  EXPECT_EQ(fault_of("name = Own 1\n"), "src/convert/tables/own.txt:1: name: unknown name");
}

TEST(ConvertTables, DefaultsAreEntries) {
  for (const System& system : convert::systems()) {
    for (const convert::Default& one : system.defaults) {
      EXPECT_NE(convert::find_entry(system, one.key, one.task), nullptr) << system.name << ": " << one.key;
    }
  }
}

// The pages of docs/settings are generated: LLMTRAIN_UPDATE_DOCS=1 test_convert --gtest_filter=ConvertTables.* writes
// them.
TEST(ConvertTables, AreInTheDocumentation) {
  std::set<std::string> pages;
  for (const System& system : convert::systems()) {
    const std::string path = fmt::format("docs/settings/{}.md", system.name), page = convert::settings_page(system);
    if (std::getenv("LLMTRAIN_UPDATE_DOCS") != nullptr) std::ofstream(path) << page;
    EXPECT_TRUE(read(path) == page) << path << " is out of date: LLMTRAIN_UPDATE_DOCS=1 writes it anew";
    pages.insert(path);
  }
  for (const auto& entry : std::filesystem::directory_iterator("docs/settings")) {
    EXPECT_TRUE(pages.contains(entry.path().string())) << entry.path() << " is the page of no system";
  }
}

}  // namespace
}  // namespace llmtrain::test
