#include "device/choose_device.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

int choose_device(std::span<const std::string> addresses, int node_rank, int ranks_of_node) {
  LLMTRAIN_CHECK(!addresses.empty() && node_rank >= 0 && node_rank < ranks_of_node, "a rank needs a GPU to choose");
  if (ranks_of_node == 1) return 0;
  std::vector<int> order(addresses.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(
      order, [&](int a, int b) { return addresses[static_cast<size_t>(a)] < addresses[static_cast<size_t>(b)]; });
  return order[static_cast<size_t>(node_rank) % order.size()];
}

}  // namespace llmtrain
