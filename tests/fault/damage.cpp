// Checkpoints that are damaged on the disk.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/error.hpp"
#include "fault/campaign.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

/// A finished run of two ranks with the checkpoints of steps 15 and 20.
void make_run(const Rig& rig, const std::string& name) {
  const Outcome outcome = rig.run(name, 2);
  if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
  fs::remove(rig.folder_of(name) + "/finished.json");
}

/// Kinds of damage to a checkpoint.
void damage(const fs::path& newest, const fs::path& older, size_t way) {
  const fs::path first = newest / "shard-00000-of-00002.h5", second = newest / "shard-00001-of-00002.h5";
  switch (way % 6) {
    case 0:
      fs::resize_file(first, fs::file_size(first) - 1);
      break;
    case 1:
      fs::resize_file(newest / "view.h5", fs::file_size(newest / "view.h5") + 1);
      break;
    case 2:
      fs::rename(first, newest / "x");
      fs::rename(second, first);
      fs::rename(newest / "x", second);
      break;
    case 3:
      fs::remove(second);
      break;
    case 4:
      fs::copy_file(older / first.filename(), first, fs::copy_options::overwrite_existing);
      break;
    default:
      fs::remove(newest / "manifest.json");
  }
}

void expect_fallback(Rig& rig, const std::string& what, Score& score) {
  const Outcome outcome = rig.run("hit", 1);
  if (outcome.exit_code != 0 || !contains(outcome.output, "step 20 cannot be used") ||
      resumed_step(outcome.output) != 15 || rig.ledger("hit") != rig.undisturbed("")) {
    score.fail(what + ": not refused, or not resumed from step 15:\n" + outcome.output);
  }
  rig.remove("hit");
}

}  // namespace

void bit_flips(int64_t count, Score& score) {
  Rig rig;
  Random random(4);
  make_run(rig, "base");
  const std::unique_ptr<Communicator> alone = make_local_communicator();
  const fs::path newest = fs::path(rig.checkpoints_of("base")) / "step-00000020";
  const std::vector<fs::path> files = files_of(newest);
  int64_t named = 0, of_shards = 0;
  for (int64_t i = 0; i < count; ++i) {
    const fs::path& file = files[static_cast<size_t>(i) % files.size()];
    const std::string whole = read_file(file);
    std::string hurt = whole;
    const auto at = static_cast<size_t>(random_below(random, static_cast<int64_t>(whole.size())));
    const auto bit = static_cast<int>(random_below(random, 8));
    hurt[at] = static_cast<char>(hurt[at] ^ (1 << bit));
    write_file(file, hurt);
    const std::string name = file.filename().string();
    const std::string what = fmt::format("bit {} of byte {} of {}", bit, at, name);
    const bool shard = name.starts_with("shard");
    score.count(shard ? "in shards" : name.ends_with(".h5") ? "in the view" : "in " + name);
    const auto found = find_checkpoint(rig.checkpoints_of("base"), *alone);
    const bool fell_back = found && found->manifest.step == 15 && found->refused.size() == 1;
    if (!fell_back || !contains(found->refused[0].reason, name)) score.fail(what + " was not found");
    of_shards += shard ? 1 : 0;
    if (shard && fell_back) named += contains(found->refused[0].reason, "instead of") ? 1 : 0;
    if (i % 500 == 0) {
      rig.copy("base", "hit");
      expect_fallback(rig, what, score);
    }
    write_file(file, whole);
  }
  if (named != of_shards) score.fail("not every message on a shard has the expected and the actual hash");
  const auto found = find_checkpoint(rig.checkpoints_of("base"), *alone);
  if (!found || found->manifest.step != 20) score.fail("control: whole again, and not taken");
  for (size_t way = 0; way < 6; ++way) {
    rig.copy("base", "hit");
    const fs::path checkpoints = rig.checkpoints_of("hit");
    damage(checkpoints / "step-00000020", checkpoints / "step-00000015", way);
    score.count("cut, grown, swapped, lost or mixed files");
    expect_fallback(rig, fmt::format("damage {}", way), score);
  }
  score.note = "all found before HDF5 opened a file, the older checkpoint taken";
}

void all_damaged(int64_t count, Score& score) {
  Rig rig;
  Random random(5);
  make_run(rig, "base");
  for (int64_t i = 0; i < count; ++i) {
    rig.copy("base", "hit");
    const fs::path checkpoints = rig.checkpoints_of("hit");
    const std::string ledger = rig.ledger("hit");
    for (const std::string& name : rig.published("hit")) {
      damage(checkpoints / name, checkpoints / name,
             std::array{0, 1, 2, 3, 5}[static_cast<size_t>(random_below(random, 5))]);
    }
    const int ranks = 1 + static_cast<int>(i % 2);
    const Outcome outcome = rig.run("hit", ranks);
    score.count("runs");
    if (outcome.exit_code != 65 || !contains(outcome.output, "step-00000015") ||
        !contains(outcome.output, "step-00000020")) {
      score.fail(fmt::format("all damaged: exit code {}:\n{}", outcome.exit_code, outcome.output));
    }
    if (rig.published("hit").size() != 2 || rig.ledger("hit") != ledger)
      score.fail("all damaged: something was removed");
    rig.remove("hit");
  }
  score.note = "exit code 65; nothing was deleted, no run began again";
}

}  // namespace llmtrain::test
