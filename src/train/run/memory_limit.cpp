#include "train/run/memory_limit.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/number_text.hpp"
#include "device/device.hpp"

namespace llmtrain {

void check_memory(int64_t bytes, int64_t limit, int64_t share, const std::string& where) {
  const auto text = [](int64_t n) { return bytes_text(static_cast<double>(n)); };
  const std::string remedy =
      "Use memory.recompute = block, more ranks with a higher parallel.zero, a smaller batch.micro or "
      "batch.sequence_length, or a smaller model (--estimate prints the memory by category)";
  if (limit > 0 && bytes > limit + between_starts) {
    throw UserError(ExitCode::deck, fmt::format("{}: the run needs {} per rank, and the limit is {}. {}", where,
                                                text(bytes), text(limit), remedy));
  }
  if (bytes > share) {
    throw UserError(ExitCode::deck,
                    fmt::format("not enough memory: the run needs {} per rank, and a rank's share of the {} is {}. {}",
                                text(bytes), device_memory_is_host() ? "node" : "GPU", text(share), remedy));
  }
}

}  // namespace llmtrain
