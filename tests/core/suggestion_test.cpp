#include "core/deck/suggestion.hpp"

#include <gtest/gtest.h>

#include <array>

namespace llmtrain {
namespace {

TEST(EditDistance, CountsKeystrokes) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abcd"), 4u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);   // the textbook example
  EXPECT_EQ(edit_distance("Saturday", "Sunday"), 3u);  // the textbook example
  EXPECT_EQ(edit_distance("d_modle", "d_model"), 1u);  // a swap counts as one edit
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);           // no edit inside a swap
  EXPECT_EQ(edit_distance("NAME", "name"), 0u);
}

TEST(NearestName, FindsWhatWasMeant) {
  const std::array<std::string_view, 5> names = {"n_layers", "n_heads", "n_kv_heads", "d_model", "bias"};
  EXPECT_EQ(nearest_name("n_layer", names), "n_layers");
  EXPECT_EQ(nearest_name("heads", names), "n_heads");
  EXPECT_EQ(nearest_name("dmodel", names), "d_model");
  EXPECT_EQ(nearest_name("baise", names), "bias");
  EXPECT_EQ(nearest_name("temperature", names), "");
  EXPECT_EQ(did_you_mean("n_layer", names), " (did you mean n_layers?)");
  EXPECT_EQ(did_you_mean("temperature", names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(Joined, PutsSeparatorsBetween) {
  EXPECT_EQ(joined(std::array<std::string_view, 3>{"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(joined(std::array<std::string_view, 1>{"a"}, " / "), "a");
}

}  // namespace
}  // namespace llmtrain
