// Numerical faults in one rank: for any ranks, stages and interruptions, the ledger is that of one process with the
// same fault.

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <map>
#include <sstream>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

/// Places of a bad number. A GPU adds up the losses itself, where a fault cannot reach them.
#ifdef LLMTRAIN_FAULTS_ON_GPU
constexpr std::array<const char*, 2> places = {"gradient", "gradient"};
#else
constexpr std::array<const char*, 2> places = {"gradient", "loss"};
#endif

/// Values of a ledger's lines, which are hexadecimal floats; for repeated steps the last one counts.
std::map<int64_t, double> values_of(const std::string& ledger, const std::string& name) {
  const std::string key = ",\"" + name + "\":\"";
  std::map<int64_t, double> values;
  std::istringstream lines(ledger);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(key);
    if (at != std::string::npos) values[last_step(line + '\n')] = std::strtod(line.c_str() + at + key.size(), nullptr);
  }
  return values;
}

double mean_loss(const std::string& ledger, int64_t first, int64_t last) {
  const std::map<int64_t, double> losses = values_of(ledger, "loss");
  double sum = 0;
  for (int64_t step = first; step <= last; ++step) sum += losses.at(step);
  return sum / static_cast<double>(last - first + 1);
}

/// One bad step: its update is skipped.
void expect_left_out(Rig& rig, Random& random, Score& score) {
  const std::array<const char*, 2> values = {"nan", "inf"};
  const int ranks = 1 + static_cast<int>(random_below(random, 4)), stage = static_cast<int>(random_below(random, 4));
  const char* place = places[static_cast<size_t>(random_below(random, 2))];
  const char* value = values[static_cast<size_t>(random_below(random, 2))];
  const int64_t step = random_below(random, 20), rank = random_below(random, ranks);
  const auto numbers = [&](int64_t in) { return fmt::format("{} step {} {} {}", place, step, in, value); };
  const std::string what = fmt::format("{} of {} ranks, stage {}", numbers(rank), ranks, stage);
  const Outcome outcome = rig.run("hit", ranks, fmt::format("parallel.zero={}", stage), {.numbers = numbers(rank)});
  const std::string& expected = rig.undisturbed("", numbers(0));
  score.count("single");
  if (outcome.exit_code != 0 || rig.ledger("hit") != expected) {
    score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
  }
  if (!contains(expected, "\"bad_steps\":1") || expected == rig.undisturbed("")) score.fail(what + ": no bad step");
  rig.remove("hit");
}

/// Bad data: the run rolls back and skips data; and again in a job that is killed and resumes.
void expect_rolled_back(Rig& rig, Random& random, const std::vector<int64_t>& operations, Score& score) {
  const std::string arguments = "divergence.max_bad_steps=2 divergence.skip_steps=3";
  const auto ranks = static_cast<int>(operations.size());
  const int64_t data = 6 + random_below(random, 8), rank = random_below(random, ranks);
  const auto numbers = [&](int64_t in) {
    return fmt::format("{} data {} {} nan;{} data {} {} inf", places[0], data, in, places[1], data + 1, in);
  };
  const Injection fault = {
      .how = "kill", .at = 1 + random_below(random, operations[0]), .rank = 0, .numbers = numbers(rank)};
  const std::string what = fmt::format("{} of {} ranks, killed at operation {}", numbers(rank), ranks, fault.at);
  rig.run("hit", ranks, arguments, fault);
  score.count("in a row, and killed");
  const std::string& expected = rig.undisturbed(arguments, numbers(0));
  if (!contains(expected, "\"rolled_back_from\"")) score.fail(what + ": no way back");
  rig.expect_whole_checkpoints("hit", what, score);
  // Rank 0 exists in a job of any size.
  rig.expect_recovery("hit", 1 + static_cast<int>(random_below(random, 4)), arguments, what, score, numbers(0));
}

}  // namespace

void bad_numbers(int64_t count, Score& score) {
  Rig rig;
  Random random(10);
  const std::vector<int64_t> operations = rig.counted(2, "", {});
  for (int64_t i = 0; i < count; ++i) {
    if (i % 2 == 0) {
      expect_left_out(rig, random, score);
    } else {
      expect_rolled_back(rig, random, operations, score);
    }
  }
  score.note = "the same ledger as in one process: the update left out; the way back and the data left out";
}

void loss_spikes(int64_t count, Score& score) {
  Rig rig;
  std::string text, seen;
  for (int i = 0; i < 6000; ++i) text += "Line " + std::to_string(i * i % 7919) + " has some words to train on.\n";
  write_file(rig.folder / "long.txt", text);
  constexpr int64_t spike = 100, steps = spike + 200;
  for (int64_t i = 0; i < count; ++i) {
    const std::string deck = fmt::format(
        "run.max_steps={} run.seed={} data.train={} batch.global=8 schedule.name=linear schedule.learning_rate=2e-2 "
        "checkpoint.every_steps=20 evaluation.every_steps=0 evaluation.batches=50 ",
        steps, 42 + i, (rig.folder / "long.txt").string());
    const std::string rule = deck +
                             "divergence.spike_z_score=4 divergence.spike_window=32 divergence.max_bad_steps=2 "
                             "divergence.skip_steps=2";
    const std::string fault = fmt::format("rate data {} -1 10", spike);
    const std::string &whole = rig.undisturbed(deck), &control = rig.undisturbed(deck, fault),
                      &ruled = rig.undisturbed(rule, fault);
    const double wanted = values_of(whole, "validation_loss").at(steps);
    const double reached = values_of(ruled, "validation_loss").at(steps);
    // After the spike, where the loss is high, and for some time.
    const double high = mean_loss(control, spike + 2, spike + 50), low = mean_loss(ruled, spike + 2, spike + 50);
    const std::string what = fmt::format(
        "loss {:.4f} without a spike, {:.4f} with the rule; in the 50 steps behind it {:.3f}, and {:.3f} "
        "without the rule",
        wanted, reached, low, high);
    score.count("spikes");
    if (!contains(ruled, "\"rolled_back_from\"")) score.fail(what + ": no way back");
    if (!(reached <= 1.02 * wanted)) score.fail(what + ": not within 2 %");
    if (!(high >= 1.1 * low)) score.fail(what + ": a control that does as well");
    seen += (seen.empty() ? "" : "; ") + what;
  }
  score.note = seen;
}

}  // namespace llmtrain::test
