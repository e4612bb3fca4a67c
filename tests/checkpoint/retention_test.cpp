#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/toy_state.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Retention, KeepsTheNewestAndThePinned) {
  const std::vector<int64_t> steps{50, 40, 30, 20, 10};
  const std::set<int64_t> all(steps.begin(), steps.end());
  EXPECT_THAT(removable(steps, {.keep = 3, .pinned = {}, .verified = all, .refused = {}}), ElementsAre(10, 20));
  EXPECT_THAT(removable(steps, {.keep = 3, .pinned = {10}, .verified = all, .refused = {}}), ElementsAre(20));
  EXPECT_THAT(removable(steps, {.keep = 0, .pinned = {}, .verified = all, .refused = {}}), ElementsAre(10, 20, 30));
  EXPECT_THAT(removable(steps, {.keep = 2, .pinned = {}, .verified = {50}, .refused = {}}), IsEmpty());
  EXPECT_THAT(removable(steps, {.keep = 2, .pinned = {}, .verified = {50, 20}, .refused = {}}), ElementsAre(10));
  // A damaged checkpoint does not count, and is removed when it is old.
  EXPECT_THAT(removable(steps, {.keep = 2, .pinned = {}, .verified = {40, 30}, .refused = {50}}), ElementsAre(10, 20));
  EXPECT_THAT(removable(steps, {.keep = 2, .pinned = {}, .verified = {50, 40}, .refused = {20}}),
              ElementsAre(10, 20, 30));
}

/// A run on a real folder of empty checkpoints: saves, kills, damage, new best ones, resumes.
class ToyRun {
 public:
  ToyRun(std::string folder, uint64_t seed) : folder_(std::move(folder)), random_(seed) {
    std::filesystem::create_directories(folder_);
    rules_.keep = 2 + static_cast<int64_t>(random_() % 4);
  }
  ~ToyRun() { std::filesystem::remove_all(folder_); }
  ToyRun(const ToyRun&) = delete;
  ToyRun& operator=(const ToyRun&) = delete;

  void act() {
    const uint64_t choice = random_() % 10;
    kill_in_ = random_() % 4 == 0 ? 1 + static_cast<int>(random_() % 6) : -1;
    const std::vector<int64_t> before = published_steps(folder_);
    try {
      if (choice < 7) {
        save();
      } else {
        if (choice == 7) damage();
        start();
      }
    } catch (const Killed&) {
      check(before);
      start();
    }
    check(before);
  }
  int64_t removed() const { return removed_; }

 private:
  struct Killed {};
  SaveHook hook() {
    return [this](const std::string&) {
      if (kill_in_ > 0 && --kill_in_ == 0) throw Killed();
    };
  }
  bool whole(int64_t step) const { return !damaged_.contains(step); }

  void save() {
    ++not_looked_at_;
    const std::string attempt = create_attempt(folder_, ++step_, hook());
    publish_attempt(folder_, attempt, step_, hook());
    rules_.verified.insert(step_);
    if (random_() % 3 == 0) best_ = step_;
    rules_.pinned = {best_, source_};
    removed_ += static_cast<int64_t>(apply_retention(folder_, rules_, hook()).size());
    if (rules_.verified.size() >= 2) not_looked_at_ = 0;
  }
  void damage() {
    const auto steps = published_steps(folder_);
    if (steps.size() > 2 && steps.front() != best_) damaged_.insert(steps.front());
  }
  /// The job starts again: it resumes from the newest checkpoint that verifies, and knows no other.
  void start() {
    kill_in_ = -1;
    remove_unfinished_saves(folder_);
    rules_.verified.clear();
    rules_.refused.clear();
    for (const int64_t step : published_steps(folder_)) {
      if (!rules_.verified.empty()) break;
      (whole(step) ? rules_.verified : rules_.refused).insert(step);
    }
    source_ = rules_.verified.empty() ? 0 : *rules_.verified.rbegin();
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      ASSERT_TRUE(step_of(entry.path().filename().string())) << "an unfinished save was not removed";
    }
  }

  void check(const std::vector<int64_t>& before) {
    const std::vector<int64_t> now = published_steps(folder_);
    const std::set<int64_t> left(now.begin(), now.end());
    for (const int64_t pinned : {best_, source_}) ASSERT_TRUE(pinned == 0 || left.contains(pinned)) << pinned;
    const auto is_whole = [&](int64_t step) { return whole(step); };
    const auto newest = std::find_if(before.begin(), before.end(), is_whole);
    const auto whole_before = std::count_if(before.begin(), before.end(), is_whole);
    const auto whole_now = std::count_if(now.begin(), now.end(), is_whole);
    if (newest != before.end()) {
      ASSERT_TRUE(left.contains(*newest) || *newest < now.front());
    }
    ASSERT_GE(whole_now, std::min<int64_t>(2, whole_before));
    ASSERT_LE(whole_now, rules_.keep + 2 + not_looked_at_);
  }

  std::string folder_;
  std::mt19937_64 random_;
  RetentionRules rules_;
  std::set<int64_t> damaged_;
  int64_t step_ = 0, best_ = 0, source_ = 0, removed_ = 0;
  int64_t not_looked_at_ = 0;  ///< saves started since retention last completed
  int kill_in_ = -1;
};

TEST(Retention, TenThousandRandomRunsNeverLoseWhatTheyNeed) {
  // Each rename is synced; only a disk in memory does this ten thousand times in seconds.
  const bool fast = ::access("/dev/shm", W_OK) == 0;
  const uint64_t runs = fast ? 10'000 : 50;
  const std::string folder = (fast ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
                             ("llmtrain_retention_test_" + std::to_string(getpid()));
  int64_t removed = 0;
  for (uint64_t seed = 0; seed < runs; ++seed) {
    ToyRun run(folder + "_" + std::to_string(seed), seed);
    for (int n = 0; n < 12; ++n) run.act();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    removed += run.removed();
  }
  EXPECT_GT(removed, static_cast<int64_t>(runs));
}

}  // namespace
}  // namespace llmtrain
