// Disks that are full or fail.

#include <fmt/format.h>
#include <sys/mount.h>

#include <algorithm>
#include <array>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

/// A file system in memory over a run's folder, if this process may mount one.
class SmallDisk {
 public:
  SmallDisk(std::string path, int64_t kilobytes) : path_(std::move(path)) {
    fs::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, fmt::format("size={}k,mode=0755", kilobytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  void grow() const { mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT, "size=64m"); }

 private:
  std::string path_;
  bool mounted_ = false;
};

/// The smallest disk, in steps of 4 KiB, on which a run succeeds. Its peak use varies by about a checkpoint, depending
/// on background saves and deletions: another run may need a quarter less.
int64_t needed_kilobytes(const Rig& rig) {
  int64_t low = 64, high = 4096;
  while (high - low > 4) {
    const int64_t middle = (low + high) / 8 * 4;
    const SmallDisk disk(rig.folder_of("probe"), middle);
    if (!disk.mounted()) return 0;
    (rig.run("probe", 2).exit_code == 0 ? high : low) = middle;
  }
  return high;
}

void expect_disk_message(const std::string& what, const Outcome& outcome, const std::string& path, double seconds,
                         Score& score) {
  if (outcome.exit_code != 73 && outcome.exit_code != 74) {
    score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
  }
  if (!contains(outcome.output, path)) score.fail(what + ": no path in the message:\n" + outcome.output);
  if (seconds > 30 * patience()) score.fail(fmt::format("{}: ended after {:.0f} s", what, seconds));
}

/// HDF5 2.2 of Debian 14 is built with assertions, one of which fails when a file is closed after a failed write.
bool is_aborted_by_hdf5(const Outcome& outcome) {
  return outcome.exit_code == 134 && contains(outcome.output, "H5F__dest: Assertion");
}

}  // namespace

void full_disks(int64_t count, Score& score) {
  Rig rig;
  rig.undisturbed("");
  const int64_t needed = needed_kilobytes(rig);
  int64_t with_sizes = 0, sufficed = 0;
  for (int64_t i = 0; i < count && needed > 0; ++i) {
    const int64_t kilobytes = needed * (50 + 49 * i / std::max<int64_t>(count - 1, 1)) / 100 / 4 * 4;
    const std::string what = fmt::format("a disk of {} KiB, where {} are needed", kilobytes, needed);
    const SmallDisk disk(rig.folder_of("hit"), kilobytes);
    const double begin = now();
    const Outcome outcome = rig.run("hit", 2);
    score.count("small file systems");
    if (outcome.exit_code == 0 && 4 * kilobytes > 3 * needed) {
      ++sufficed;
    } else {
      expect_disk_message(what, outcome, rig.folder_of("hit"), now() - begin, score);
    }
    with_sizes += contains(outcome.output, "the disk is full: a checkpoint needs") ? 1 : 0;
    rig.expect_whole_checkpoints("hit", what, score);
    disk.grow();
    const Outcome again = rig.run("hit", 2);
    if (again.exit_code != 0 || rig.ledger("hit") != rig.undisturbed("")) {
      score.fail(what + ": with more room it does not go on:\n" + again.output);
    }
  }
  Random random(2);
  const std::vector<int64_t> operations = rig.counted(2, "", {});
  for (int64_t i = needed > 0 ? count : 0; i < count; ++i) {  // if nothing can be mounted
    const int64_t at = 1 + random_below(random, operations[0]);
    const std::string what = fmt::format("disk full from operation {} on", at);
    const double begin = now();
    const Outcome outcome = rig.run("hit", 2, "", {.how = "full", .at = at, .rank = 0});
    score.count("injected");
    if (outcome.exit_code != 0) {  // links and leftover files
      expect_disk_message(what, outcome, rig.folder_of("hit"), now() - begin, score);
    }
    rig.expect_whole_checkpoints("hit", what, score);
    rig.expect_recovery("hit", 2, "", what, score);
  }
  score.note = needed > 0 ? fmt::format("sizes 50 to 99 % of the need; {} named needed and free bytes, {} sufficed",
                                        with_sizes, sufficed)
                          : "injected: nothing can be mounted here";
}

void disk_errors(int64_t count, Score& score) {
  Rig rig;
  Random random(3);
  const std::vector<int64_t> operations = rig.counted(2, "", {});
  int64_t tolerated = 0, died_in_hdf5 = 0;
  for (int64_t i = 0; i < count; ++i) {
    constexpr std::array<const char*, 5> ways = {"eio", "full", "quota", "short", "limit"};
    const std::string how = ways[static_cast<size_t>(i % 5)];
    const int rank = static_cast<int>(random_below(random, 2));
    const int64_t at = 1 + random_below(random, operations[static_cast<size_t>(rank)]);
    const std::string what = fmt::format("{} at operation {} in rank {}", how, at, rank);
    const double begin = now();
    const Outcome outcome =
        how == "limit"  // limit on the size of a file; MPI has its own files for several ranks
            ? shell(fmt::format("ulimit -f {}; {}", 1 + random_below(random, 70), rig.command("hit", 1, "", {})))
            : rig.run("hit", 2, "", {.how = how, .at = at, .rank = rank});
    score.count(how);
    if (outcome.exit_code == 0) {  // short writes are continued; links and the removal of leftover files are not vital
      ++tolerated;
      if (rig.ledger("hit") != rig.undisturbed("")) score.fail(what + ": another ledger");
    } else if (is_aborted_by_hdf5(outcome)) {
      ++died_in_hdf5;
    } else {
      expect_disk_message(what, outcome, rig.folder_of("hit"), now() - begin, score);
    }
    rig.expect_whole_checkpoints("hit", what, score);
    rig.expect_recovery("hit", 1, "", what, score);
  }
  score.note = fmt::format(
      "{} runs went on to the end (short writes, links), {} died inside HDF5, the others ended with 73 or 74",
      tolerated, died_in_hdf5);
}

}  // namespace llmtrain::test
