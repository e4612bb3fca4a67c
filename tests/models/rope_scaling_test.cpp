#include "models/rope/rope_scaling.hpp"

#include <gtest/gtest.h>

namespace llmtrain {
namespace {

RopeScaling parse(std::string_view text) { return DeckValue<RopeScaling>::parse(text, {}); }
std::string print(const RopeScaling& s) { return DeckValue<RopeScaling>::print(s); }

TEST(RopeScalingTest, ReadsWhatItPrints) {
  for (const char* text :
       {"none", "linear, factor 2", "dynamic, factor 4.5", "llama3, factor 8, original_max_position_embeddings 8192",
        "llama3, factor 32, original_max_position_embeddings 8192, low_freq_factor 2, high_freq_factor 5",
        "yarn, factor 4, original_max_position_embeddings 64, beta_fast 16, beta_slow 2, attention_factor 1.5",
        "yarn, factor 4, original_max_position_embeddings 64, mscale 1, mscale_all_dim 0.5, truncate false",
        "longrope, original_max_position_embeddings 4096, short_factor 1 1.05, long_factor 1.25 60.5"}) {
    EXPECT_EQ(print(parse(text)), text);
    EXPECT_EQ(parse(print(parse(text))), parse(text));
  }
}

TEST(RopeScalingTest, DefaultsAreNotPrinted) {
  EXPECT_EQ(print(parse("llama3, factor = 8, low_freq_factor = 1, high_freq_factor=4, "
                        "original_max_position_embeddings = 8192")),
            "llama3, factor 8, original_max_position_embeddings 8192");
  EXPECT_EQ(parse(""), RopeScaling());
}

TEST(RopeScalingTest, RefusesByName) {
  const auto message = [](const char* text) {
    try {
      parse(text);
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message("lama3, factor 8").find("did you mean llama3?"), std::string::npos);
  EXPECT_NE(message("linear, beta_fast 3").find("not a parameter of linear"), std::string::npos);
  EXPECT_NE(message("linear, factr 3").find("did you mean factor?"), std::string::npos);
  EXPECT_NE(message("linear, factor"), "");
  EXPECT_NE(message("linear, factor 0"), "");
  EXPECT_NE(message("linear, factor 2x"), "");
  EXPECT_NE(message("none, factor 2"), "");
  EXPECT_NE(message("longrope, short_factor 1 two"), "");
  EXPECT_EQ(message("linear, factor 2"), "");
}

TEST(RopeScalingTest, SaysWhatIsMissing) {
  EXPECT_EQ(parse("none").problem(4), "");
  EXPECT_EQ(parse("linear, factor 2").problem(4), "");
  EXPECT_NE(parse("linear").problem(4), "");
  EXPECT_NE(parse("llama3, factor 2").problem(4), "");
  EXPECT_EQ(parse("yarn, original_max_position_embeddings 64").problem(4), "");
  EXPECT_NE(parse("yarn, original_max_position_embeddings 64, beta_fast 1, beta_slow 2").problem(4), "");
  EXPECT_NE(parse("dynamic, factor 2").problem(1), "");
  const RopeScaling longrope =
      parse("longrope, original_max_position_embeddings 64, short_factor 1 2, long_factor 3 4");
  EXPECT_EQ(longrope.problem(2), "");
  EXPECT_NE(longrope.problem(3), "");
}

}  // namespace
}  // namespace llmtrain
