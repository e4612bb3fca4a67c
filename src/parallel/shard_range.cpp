#include "parallel/shard_range.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

ShardRange shard_range(const Tensor& buffer, std::span<const int64_t> borders, int rank) {
  const int64_t begin = borders[static_cast<size_t>(rank)], end = borders[static_cast<size_t>(rank) + 1];
  const int64_t width = static_cast<int64_t>(size_of(buffer.dtype));
  return {static_cast<char*>(buffer.data) + begin * width, (end - begin) * width};
}

void check_borders(const Tensor& buffer, std::span<const int64_t> borders, int size) {
  LLMTRAIN_CHECK(borders.size() > static_cast<size_t>(size) && (borders.size() - 1) % static_cast<size_t>(size) == 0,
                 "one border more than ranks");
  LLMTRAIN_CHECK(
      std::is_sorted(borders.begin(), borders.end()) && borders.front() >= 0 && borders.back() <= buffer.numel(),
      "shard borders leave the buffer");
}

void check_exchange(std::span<const int64_t> borders, std::span<const Tensor> received,
                    std::span<const uint8_t> contributes, int rank, DType dtype) {
  LLMTRAIN_CHECK(received.size() + 1 == borders.size() && contributes.size() + 1 == borders.size(),
                 "one buffer and one flag per rank");
  const size_t me = static_cast<size_t>(rank);
  const int64_t own = borders[me + 1] - borders[me];
  for (size_t r = 0; r < received.size(); ++r) {
    if (contributes[r] == 0 || r == me || own == 0) continue;
    LLMTRAIN_CHECK(!received[r].empty() && received[r].numel() == own && received[r].dtype == dtype,
                   "the buffer of a received shard must have the length of this rank's range");
  }
}

}  // namespace llmtrain
