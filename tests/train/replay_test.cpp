// Which ranks a replay names, what it draws, and what it leaves in the run's folder.

#include "train/run/replay.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "checkpoint/checkpoint_folder.hpp"
#include "harness/temporary_folder.hpp"
#include "parallel/local_communicator.hpp"
#include "train/run/suspects.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t bad = 666;

/// Hashes of ranks on hosts n0, n1 ..., each with one rank; the gradients of rank r have hash 10 + r.
struct Job {
  explicit Job(int ranks_in, int64_t ranks_of_unit_in = 1) : ranks(ranks_in), ranks_of_unit(ranks_of_unit_in) {
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back("n" + std::to_string(rank));
  }
  /// All ranks compute the gradients of those `shift` units further on; rank `wrong` gets another one each time.
  void add(int64_t shift, int wrong = -1) {
    ReplayHashes hashes{shift, {}};
    for (int rank = 0; rank < ranks; ++rank) {
      const auto of = static_cast<uint64_t>((rank + shift * ranks_of_unit) % ranks);
      hashes.values.push_back(rank == wrong ? bad + of : 10 + of);
    }
    computed.push_back(hashes);
  }
  ReplayFindings compare() const { return compare_replays(computed, ranks_of_unit, hosts); }

  int ranks;
  int64_t ranks_of_unit;
  std::vector<std::string> hosts;
  std::vector<ReplayHashes> computed;
};

TEST(ReplayFindings, EqualHashesNameNobody) {
  Job job(3);
  job.add(0);
  job.add(2);
  EXPECT_THAT(job.compare().ranks, IsEmpty());
  EXPECT_TRUE(job.compare().decided);
}

TEST(ReplayFindings, AThirdRankDecides) {
  for (int wrong = 0; wrong < 4; ++wrong) {
    Job job(4);
    job.add(0, wrong);
    job.add(1, wrong);
    EXPECT_FALSE(job.compare().decided) << "a control: two cannot decide";
    EXPECT_EQ(job.compare().ranks.size(), 3U) << "the rank, its replayer, and the one that it replays";
    job.add(3, wrong);
    EXPECT_THAT(job.compare().ranks, ElementsAre(wrong));
    EXPECT_THAT(job.compare().hosts, ElementsAre(job.hosts[static_cast<size_t>(wrong)]));
    EXPECT_TRUE(job.compare().decided);
  }
}

TEST(ReplayFindings, ARankThatWasWrongOnceIsNamed) {
  for (const size_t time : {0U, 1U, 2U}) {
    Job job(3);
    for (const int64_t shift : {0, 2, 1}) job.add(shift, job.computed.size() == time ? 1 : -1);
    EXPECT_THAT(job.compare().ranks, ElementsAre(1));
  }
}

TEST(ReplayFindings, TwoRanksAreBothNamed) {
  Job job(2);
  job.add(0, 1);
  job.add(1, 1);
  EXPECT_THAT(job.compare().hosts, ElementsAre("n0", "n1"));
  EXPECT_FALSE(job.compare().decided);
}

TEST(ReplayFindings, OneRankNamesItself) {
  Job job(1);
  job.add(0);
  job.add(0, 0);
  EXPECT_THAT(job.compare().ranks, ElementsAre(0));
  EXPECT_TRUE(job.compare().decided);
}

TEST(ReplayFindings, UnitsOfSeveralRanksAreComparedAtEqualPlaces) {
  Job job(6, 2);
  for (const int64_t shift : {0, 1, 2}) job.add(shift, 3);
  EXPECT_THAT(job.compare().ranks, ElementsAre(3));
  EXPECT_TRUE(job.compare().decided);
  // Its sums with the other rank of its unit, on another host, spoil that one's gradients.
  for (ReplayHashes& hashes : job.computed) hashes.values[2] += 1;
  EXPECT_THAT(job.compare().ranks, ElementsAre(2, 3));
  EXPECT_FALSE(job.compare().decided);
  job.hosts[2] = job.hosts[3];
  EXPECT_TRUE(job.compare().decided);
}

TEST(ReplayDraw, FollowsFromTheSeedAndReachesEveryRoundWithAllRanks) {
  const auto alone = make_local_communicator();
  const Mesh mesh(*alone, {});
  const GroupSchedule in_turn{10, 4, 0, 1}, runs{10, 4, 3, 1};
  std::set<int64_t> rounds;
  const Replay replay(mesh, 5, 20, 1), other(mesh, 5, 20, 2);
  bool differs = false;
  for (int64_t completed = 5; completed < 500; completed += 5) {
    rounds.insert(replay.round(completed, in_turn));
    EXPECT_EQ(replay.round(completed, in_turn), Replay(mesh, 5, 20, 1).round(completed, in_turn));
    differs = differs || replay.round(completed, in_turn) != other.round(completed, in_turn);
    EXPECT_EQ(replay.round(completed, runs), 0) << "the last rank has one group";
  }
  EXPECT_THAT(rounds, ElementsAre(0, 1)) << "two ranks are idle in the third";
  EXPECT_TRUE(differs);
  std::vector<int64_t> due;
  for (int64_t completed = 0; completed < 20; ++completed) {
    if (replay.is_due(completed)) due.push_back(completed);
  }
  EXPECT_THAT(due, ElementsAre(5, 10, 15, 19));
}

class Suspects : public ::testing::Test {
 protected:
  Suspects() {
    for (const int64_t step : {5, 10, 15}) make(step);
    fs::create_directory_symlink(checkpoint_name(15), folder / "checkpoints/latest");
    fs::create_directory_symlink(checkpoint_name(10), folder / "checkpoints/best");
  }
  void make(int64_t step) const { fs::create_directories(folder / ("checkpoints/" + checkpoint_name(step))); }
  std::string link(const std::string& name) const {
    const fs::path path = folder / ("checkpoints/" + name);
    return fs::is_symlink(path) ? fs::read_symlink(path).string() : "";
  }
  std::vector<int64_t> steps() const { return published_steps((folder / "checkpoints").string()); }

  test::TemporaryFolder folder;
  std::string run = folder.text();
};

TEST_F(Suspects, LaterCheckpointsAreSetAsideOnce) {
  write_replay_state(run, {5, -1, false, {}});
  set_suspects_aside(run);
  EXPECT_THAT(steps(), ElementsAre(15, 10, 5)) << "a control: nobody asked for it";
  write_replay_state(run, {5, -1, true, {}});
  set_suspects_aside(run);
  EXPECT_THAT(steps(), ElementsAre(5));
  EXPECT_TRUE(fs::exists(folder / "suspect_checkpoints/step-00000015"));
  EXPECT_TRUE(is_suspect(run + "/suspect_checkpoints/step-00000015"));
  EXPECT_FALSE(is_suspect(run + "/checkpoints/step-00000005"));
  EXPECT_EQ(link("latest"), checkpoint_name(5));
  EXPECT_EQ(link("best"), "");
  make(10);
  set_suspects_aside(run);
  EXPECT_THAT(steps(), ElementsAre(10, 5)) << "those of the next job stay";
  write_replay_state(run, {-1, -1, true, {}});
  set_suspects_aside(run);
  EXPECT_THAT(steps(), IsEmpty());
  EXPECT_TRUE(fs::exists(folder / "suspect_checkpoints/step-00000010.2")) << "both are kept";
  EXPECT_EQ(link("latest"), "");
}

TEST_F(Suspects, StateAndNodesAreRead) {
  ReplayState state{10, 5, true, {}};
  state.notices.resize(1);
  state.notices.front().host = "n7";
  state.notices.front().ranks = {2, 3};
  state.notices.front().replay = NodeNotice::Replay::wrong;
  write_replay_state(run, state);
  EXPECT_EQ(read_replay_state(run), state);
  for (const char* damaged : {"", "[1]", R"({"trusted":"x"})", R"({"notices":[{"host":1}]})", R"({"notices":7})"}) {
    std::ofstream(folder / replay_file_name) << damaged;
    EXPECT_EQ(read_replay_state(run), ReplayState()) << damaged;
  }
  exclude_nodes(run, {"n7", "n8"});
  exclude_nodes(run, {"n8", "n9"});
  std::ifstream file(folder / "excluded_nodes");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "n7\nn8\nn9\n");
}

}  // namespace
}  // namespace llmtrain
