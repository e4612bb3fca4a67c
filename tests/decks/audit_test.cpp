// Samples of a run: each appears once in every epoch, whatever interrupts the run and on however many ranks it resumes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/manifest.hpp"
#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

/// A short last step of an epoch, several micro-batches. All steps may be bad.
constexpr const char* deck_text = R"([run]
epochs = 3
output = FOLDER
[model]
d_model = 16
n_layers = 1
n_heads = 2
[data]
train = TEXT
tokenizer = char
packing = none
document_separator = blank_line
validation_fraction = 0
[batch]
sequence_length = 112
micro = 2
global = 8
[precision]
compute = fp32
[divergence]
max_bad_steps = 1000000
skip_steps = 2
[checkpoint]
every_steps = 4
)";

class Audit : public RunFolder {
 protected:
  Audit() : RunFolder(text_of_documents(60), deck_text) {
    // The ledger names the samples of bad steps. (Bad steps do not change the order of samples.)
    for (int step = 0; step <= steps; ++step) every_step_is_bad += "gradient data " + std::to_string(step) + " 0 nan;";
  }
  /// The samples of each step, from its last line if it was repeated.
  std::vector<Ids> samples_of_steps(const std::string& name) const {
    std::vector<Ids> samples;
    std::istringstream text(ledger(name));
    for (std::string line; std::getline(text, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("samples")) continue;
      const auto step = json["step"].get<size_t>();
      if (samples.size() < step) samples.resize(step);
      samples[step - 1] = json.at("sample_ids").get<Ids>();
    }
    return samples;
  }
  struct Counts {
    size_t missing = 0, twice = 0;
  };
  /// Over all epochs, of `steps_per_epoch` steps each.
  static Counts audit(const std::vector<Ids>& samples) {
    Counts counts;
    for (size_t first = 0; first + steps_per_epoch <= samples.size(); first += steps_per_epoch) {
      std::multiset<int64_t> seen;
      for (size_t step = first; step < first + steps_per_epoch; ++step) {
        seen.insert(samples[step].begin(), samples[step].end());
      }
      for (int64_t id = 0; id < documents; ++id) {
        counts.missing += seen.count(id) == 0 ? 1 : 0;
        counts.twice += seen.count(id) > 1 ? 1 : 0;
      }
    }
    return counts;
  }

  static constexpr int64_t documents = 60;
  static constexpr size_t steps_per_epoch = 8;  // of 8 samples, the last of 4
  static constexpr int steps = 3 * static_cast<int>(steps_per_epoch);
  std::string every_step_is_bad;
};

TEST_F(Audit, EverySampleOnceInEveryEpochAcrossInterruptionsAndRankCounts) {
  int ranks = 0;
  for (const int stopped_in : {1, 7, 8, 12, 20}) {  // including the end of an epoch
    const Outcome outcome =
        start("run", ++ranks % 4 + 1, {}, every_step_is_bad + "signal step " + std::to_string(stopped_in) + " 0 10");
    ASSERT_EQ(outcome.exit_code, 75) << outcome.output;
  }
  const Outcome outcome = start("run", 3, {}, every_step_is_bad);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<Ids> samples = samples_of_steps("run");
  ASSERT_EQ(samples.size(), static_cast<size_t>(steps));
  EXPECT_EQ(audit(samples).missing, 0U);
  EXPECT_EQ(audit(samples).twice, 0U);
  EXPECT_NE(samples[0], samples[steps_per_epoch]) << "every epoch has an order of its own";
}

TEST_F(Audit, SeesACheckpointThatGoesOnElsewhereInTheData) {
  ASSERT_EQ(start("run", 2, {}, every_step_is_bad + "signal step 7 0 10").exit_code, 75);
  const fs::path path = checkpoint("run", 8) / "manifest.json";
  Manifest manifest = parse_manifest(read_file(path), path.string());
  manifest.run.skipped = {{8, 9}};
  write_file(path, to_text(manifest));
  const Outcome outcome = start("run", 1, {}, every_step_is_bad);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_GE(audit(samples_of_steps("run")).missing, 1U);
  EXPECT_GE(audit(samples_of_steps("run")).twice, 1U);
}

}  // namespace
}  // namespace llmtrain::test
