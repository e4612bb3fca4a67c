// campaign NAME COUNT [FILE]: one campaign with this many attempts. Ends with exit code 0 when nothing went wrong, and
// adds a row of the table of benchmarks/results/fault_campaigns.md to FILE.

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "fault/campaign.hpp"

namespace {

using llmtrain::test::Score;

struct Campaign {
  const char* name;
  const char* title;
  void (*run)(int64_t count, Score& score);
};
constexpr std::array<Campaign, 18> campaigns = {
    {{"kills", "SIGKILL in runs of 4 ranks, of one rank or all", llmtrain::test::kills},
     {"crash_points", "SIGKILL at every operation of one save", llmtrain::test::crash_points},
     {"full_disks", "Disk too small, then larger", llmtrain::test::full_disks},
     {"disk_errors", "EIO, ENOSPC, EDQUOT, short writes, file size limit", llmtrain::test::disk_errors},
     {"bit_flips", "Flipped bits and damaged files of a checkpoint", llmtrain::test::bit_flips},
     {"all_damaged", "All checkpoints damaged", llmtrain::test::all_damaged},
     {"slow_writer", "Slow and failing background saves", llmtrain::test::slow_writer},
     {"rank_faults", "One of 3 ranks goes wrong", llmtrain::test::rank_faults},
     {"no_memory", "One allocation fails", llmtrain::test::no_memory},
     {"stop_signals", "SIGUSR1 and SIGTERM at any moment", llmtrain::test::stop_signals},
     {"ended_by_launcher", "SIGTERM to mpirun, which kills all after a second", llmtrain::test::ended_by_launcher},
     {"stopped_ranks", "SIGSTOP of one of 3 ranks", llmtrain::test::stopped_ranks},
     {"slow_disks", "A disk that is slow, or hangs", llmtrain::test::slow_disks},
     {"two_owners", "Two jobs with one run", llmtrain::test::two_owners},
     {"bad_numbers", "NaN and infinity in one rank", llmtrain::test::bad_numbers},
     {"loss_spikes", "Ten times the learning rate in one step", llmtrain::test::loss_spikes},
     {"many_nodes", "Kills, hangs and full disks in 16 ranks on several nodes", llmtrain::test::many_nodes},
     {"replays", "A wrong bit in a gradient, a weight or a product", llmtrain::test::replays}}};

int run(const Campaign& campaign, int64_t count, const char* file) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Score score;
  campaign.run(count, score);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const std::string row = fmt::format("| {} | {} ({}) | {} | {} | {:.0f} s |", campaign.title, score.tried(),
                                      score.kinds(), score.failures(), score.note, seconds);
  std::cout << row << '\n';
  if (file != nullptr) std::ofstream(file, std::ios::app) << row << '\n';
  return score.failures() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = argc > 2 ? std::atoll(argv[2]) : 0;
  for (const Campaign& campaign : campaigns) {
    if (argc < 3 || count < 1 || std::string(argv[1]) != campaign.name) continue;
    try {
      return run(campaign, count, argc > 3 ? argv[3] : nullptr);
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
      return 1;
    }
  }
  std::cerr << "usage: campaign NAME COUNT [FILE]; names:";
  for (const Campaign& campaign : campaigns) std::cerr << ' ' << campaign.name;
  std::cerr << '\n';
  return 64;
}
