#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llmtrain {

/// Last state that a rank wrote about itself in the run's folder `status`.
struct RankState {
  int64_t rank = 0;
  std::string host;
  int64_t step = 0;
  std::string doing;   ///< see describe(const RankStatus&)
  int64_t silent = 0;  ///< minutes since it was written
};

/// The first `max_rank_states` ranks in the order of their numbers; none while no job runs. Never throws.
inline constexpr size_t max_rank_states = 256;
std::vector<RankState> read_rank_states(const std::filesystem::path& folder);

}  // namespace llmtrain
