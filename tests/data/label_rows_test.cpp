// Labels of rows: which names they have, and which outputs they mean.

#include "data/formats/label_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;

LabelledRow row_of(const char* label) { return {nlohmann::ordered_json::parse(label), "label", false}; }

std::vector<std::string> names_of(const std::vector<const char*>& labels) {
  FoundLabels all;
  for (const char* label : labels) {
    FoundLabels one;  // as of a rank
    one.add(row_of(label), {});
    all.add(FoundLabels::unpacked(one.packed()));
  }
  return all.names();
}

float output_of(const char* label, const std::vector<std::string>& names) {
  std::vector<float> values;
  append_labels(row_of(label), {.names = names}, {}, values);
  return values.at(0);
}

TEST(Labels, NamesOfThoseThatRowsHave) {
  EXPECT_THAT(names_of({"\"b\"", "\"a\"", "\"b\""}), ElementsAre("a", "b"));
  EXPECT_THAT(names_of({"2", "0", "1"}), ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
  EXPECT_THAT(names_of({"10", "9", "1.0"}), ElementsAre("1", "9", "10")) << "stars: no output is without rows";
  EXPECT_THAT(names_of({"1", "-1"}), ElementsAre("-1", "1"));
  EXPECT_THAT(names_of({"10", "\"x\""}), ElementsAre("10", "x"));
  EXPECT_THAT(names_of({"true", "false"}), ElementsAre("false", "true"));
  EXPECT_THROW(names_of({"1"}), UserError);
  EXPECT_THROW(names_of({"1.5", "2"}), UserError);
}

TEST(Labels, NumbersThatAreNamesAreNoPlaces) {
  EXPECT_EQ(output_of("2", {"1", "2", "3"}), 1);
  EXPECT_EQ(output_of("\"2\"", {"1", "2", "3"}), 1);
  EXPECT_EQ(output_of("2", {"a", "b", "c"}), 2);
  EXPECT_EQ(output_of("true", {"false", "true"}), 1);
  EXPECT_THROW(output_of("0", {"1", "2", "3"}), UserError);
  EXPECT_THROW(output_of("3", {"a", "b", "c"}), UserError);
  EXPECT_THROW(output_of("\"2\"", {"a", "b", "c"}), UserError);
}

}  // namespace
}  // namespace llmtrain
