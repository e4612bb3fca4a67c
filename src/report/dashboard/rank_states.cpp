#include "report/dashboard/rank_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "parallel/job/rank_status.hpp"

namespace llmtrain {

std::vector<RankState> read_rank_states(const std::filesystem::path& folder) {
  std::vector<RankState> states;
  for (size_t rank = 0; rank < max_rank_states; ++rank) {
    const std::filesystem::path path = folder / "status" / fmt::format("rank-{:05}", rank);
    std::error_code error;
    if (std::filesystem::is_symlink(path, error)) continue;  // it could lead out of the run
    std::ifstream file(path, std::ios::binary);
    if (!file) break;
    std::string text(4 * status_bytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    const std::optional<RankStatus> status = parse_status(text);
    if (!status) continue;  // it is being written
    std::error_code unknown;
    const auto written = std::filesystem::last_write_time(path, unknown);
    const auto age =
        unknown ? std::filesystem::file_time_type::duration{} : std::filesystem::file_time_type::clock::now() - written;
    states.push_back({status->rank, status->process.host, status->step, describe(*status),
                      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::minutes>(age).count())});
  }
  return states;
}

}  // namespace llmtrain
