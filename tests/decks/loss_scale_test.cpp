// fp16 with a dynamic loss scale: it falls until gradients are finite, and every line of the ledger is a function of
// the deck.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using ::testing::HasSubstr;
using Lines = std::vector<nlohmann::json>;

/// The initial scale is so high that gradients overflow for some steps, and soon grows into the next overflow.
const DocumentsDeck deck{24, 2, 6, R"([precision]
compute = fp16
initial_loss_scale = 134217728
loss_scale_window = 3
loss_scale_hysteresis = 2
[evaluation]
every_steps = 10
[checkpoint]
every_steps = 8
[log]
every_steps = 4
parameter_hash_every_steps = 1
)"};

class LossScale : public RunFolder {
 protected:
  LossScale() : RunFolder(text_of_documents(40), deck.text()) {}

  std::string ledger_of(const std::string& name, int ranks = 1, const std::vector<std::string>& overrides = {}) {
    outcome = start(name, ranks, overrides);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return ledger(name);
  }
  /// Lines of the ledger that belong to steps.
  static Lines steps_of(const std::string& ledger) {
    Lines all;
    std::istringstream text(ledger);
    for (std::string line; std::getline(text, line);) {
      if (const auto json = nlohmann::json::parse(line); json.contains("samples")) all.push_back(json);
    }
    return all;
  }
  static double number(const nlohmann::json& line, const char* key) {
    return std::strtod(line[key].get<std::string>().c_str(), nullptr);
  }

  Outcome outcome;
};

TEST_F(LossScale, FallsSkipsAndGrowsByTheRules) {
  const Lines steps = steps_of(ledger_of("rules"));
  ASSERT_EQ(steps.size(), 24u);
  const std::string console = outcome.output;
  const Lines plain = steps_of(ledger_of("plain", 1, {"precision.compute=fp32"}));
  double scale = 134217728;
  int64_t left = 2, clean = 0, skipped = 0, grown = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const nlohmann::json& line = steps[i];
    EXPECT_EQ(number(line, "loss_scale"), scale) << line;
    EXPECT_TRUE(std::isfinite(number(line, "loss"))) << line;
    const bool overflow = !std::isfinite(number(line, "grad_norm"));
    EXPECT_EQ(line.contains("skipped_steps"), overflow) << line;
    EXPECT_FALSE(line.contains("bad_steps")) << line;
    EXPECT_EQ(line["learning_rate"], plain[i - static_cast<size_t>(skipped)]["learning_rate"])
        << "the schedule does not count skipped steps: " << line;
    const bool rests = overflow || number(line, "learning_rate") == 0;
    EXPECT_EQ(i > 0 && line["parameters"] != steps[i - 1]["parameters"], !rests) << line;
    if (overflow) {
      EXPECT_EQ(line["skipped_steps"], ++skipped);
      clean = 0;
      if (left > 1) {
        --left;
      } else {
        scale /= 2;
      }
    } else if (++clean == 3) {
      clean = 0;
      left = 2;
      scale *= 2;
      ++grown;
    }
  }
  EXPECT_GT(skipped, 3);
  EXPECT_GE(grown, 1);
  EXPECT_LT(skipped, 20) << "it also trains";
  EXPECT_LT(number(steps.back(), "loss"), number(steps.front(), "loss") - 0.2);
  EXPECT_THAT(console, HasSubstr("gradients overflow at a loss scale of 1.34218e+08; the step is skipped"));
  const std::string metrics = read_file(folder / "rules/metrics.jsonl");
  EXPECT_THAT(metrics, HasSubstr("\"loss_scale\":"));
  EXPECT_THAT(metrics, HasSubstr("\"skipped_steps\":" + std::to_string(skipped)));
}

TEST_F(LossScale, IsTheSameOnAllRanksAndGoesOnInTheMiddle) {
  const std::string expected = ledger_of("one");
  int runs = 0;
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      if (ranks == 1 && stage == 1) continue;
      EXPECT_EQ(ledger_of("run" + std::to_string(++runs), ranks, {"parallel.zero=" + std::to_string(stage)}), expected)
          << ranks << " ranks, stage " << stage;
    }
  }
  EXPECT_NE(ledger_of("other", 1, {"precision.loss_scale_hysteresis=1"}), expected) << "control";
  // Stopped after an overflow that used up part of the hysteresis, and after steps without overflow.
  const Lines steps = steps_of(expected);
  for (const int stop : {1, 3, 17}) {
    const std::string name = "stopped" + std::to_string(stop);
    const std::string fault = "signal step " + std::to_string(stop - 1) + " 0 10";
    EXPECT_EQ(start(name, 2, {}, fault).exit_code, 75);
    EXPECT_EQ(steps_of(ledger(name)).size(), static_cast<size_t>(stop));
    EXPECT_EQ(ledger_of(name, 3, {"parallel.zero=3"}), expected) << "stopped after " << stop;
  }
}

TEST_F(LossScale, EndsWithTheGuardsCodeWhereItCannotFall) {
  outcome = start("bottom", 2, {"precision.min_loss_scale=134217728"});
  EXPECT_EQ(outcome.exit_code, 79) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the gradient norm is not finite at the minimum loss scale of 1.34218e+08"));
  EXPECT_THAT(outcome.output, HasSubstr("3 bad steps in a row"));
  EXPECT_EQ(start("fixed", 1, {"precision.loss_scale=134217728"}).exit_code, 79);
  const Lines steps = steps_of(ledger_of("fits", 1, {"precision.loss_scale=1024"}));
  for (const nlohmann::json& line : steps) {
    EXPECT_EQ(number(line, "loss_scale"), 1024);
    EXPECT_FALSE(line.contains("skipped_steps"));
  }
}

TEST_F(LossScale, Fp16FollowsFp32) {
  const Lines single = steps_of(ledger_of("fp32", 1, {"precision.compute=fp32"}));
  const Lines half =
      steps_of(ledger_of("fp16", 1, {"precision.initial_loss_scale=1024", "precision.loss_scale_window=9"}));
  const Lines rough = steps_of(ledger_of("bf16", 1, {"precision.compute=bf16"}));
  double nearest = 0, farthest = 0;
  for (size_t i = 0; i < single.size(); ++i) {
    EXPECT_FALSE(half[i].contains("skipped_steps"));
    const double right = number(single[i], "loss"), norm = number(single[i], "grad_norm");
    EXPECT_NEAR(number(half[i], "loss"), right, 5e-4 * right) << i;
    EXPECT_NEAR(number(half[i], "grad_norm"), norm, 2e-3 * norm) << "unscaled, step " << i;
    nearest += std::pow(number(half[i], "loss") - right, 2);
    farthest += std::pow(number(rough[i], "loss") - right, 2);
  }
  EXPECT_GT(nearest, 0) << "fp16 must show, or it was not used";
  EXPECT_LT(nearest, farthest) << "it has three more bits than bf16";
}

}  // namespace
}  // namespace llmtrain::test
