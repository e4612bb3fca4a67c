#include "train/run/libraries.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "core/machine.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

namespace {

constexpr size_t max_hosts = 8;  ///< maximum named in a message

/// Returns why training does not use the library's attention, even if there is one; null: it does.
const char* fallback_reason(const ModelConfig& model, DType compute) {
  if (compute == DType::f32) return "in fp32";
  return model.attention_dropout > 0 ? "with dropout" : nullptr;
}

}  // namespace

std::string attention_backend(const std::string& library, bool trains, const ModelConfig& model, DType compute) {
  return trains && fallback_reason(model, compute) == nullptr ? library : std::string();
}

namespace {

/// `difference` describes the libraries of ranks and their hosts if they differ.
template <class Difference>
void agree(const std::string& library, Communicator& communicator, const Difference& difference) {
  std::string first = library;
  communicator.broadcast(first);
  if (sum_of_ranks(communicator, library == first ? 0 : 1) == 0) return;
  const std::vector<std::string> libraries = communicator.gather_all(library);
  throw UserError(ExitCode::missing_input, difference(libraries, communicator.gather_all(host_name())));
}

}  // namespace

void agree_on_attention(const std::string& library, Communicator& communicator) {
  agree(library, communicator, attention_difference);
}

void agree_on_products(const std::string& library, Communicator& communicator) {
  agree(library, communicator, product_difference);
}

namespace {

/// Returns which hosts use which library, if libraries differ.
std::string hosts_of_libraries(std::span<const std::string> libraries, std::span<const std::string> hosts) {
  std::vector<std::string> found;
  for (const std::string& library : libraries) {
    if (std::ranges::find(found, library) == found.end()) found.push_back(library);
  }
  if (found.size() < 2) return {};
  std::vector<std::string> parts;
  for (const std::string& library : found) {
    std::vector<std::string> names;
    for (size_t rank = 0; rank < libraries.size(); ++rank) {
      const bool is_new = libraries[rank] == library && std::ranges::find(names, hosts[rank]) == names.end();
      if (is_new) names.push_back(hosts[rank]);
    }
    const size_t shown = std::min(names.size(), max_hosts);
    const std::string more = shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "";
    names.resize(shown);
    parts.push_back(fmt::format("{} on {}{}", library.empty() ? "built-in" : library, fmt::join(names, ", "), more));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts) {
  const std::string found = hosts_of_libraries(libraries, hosts);
  if (found.empty()) return {};
  return fmt::format(
      "the ranks use different attention backends, whose results differ in bits: {}. Install the same cuDNN on all "
      "nodes, where LD_LIBRARY_PATH finds it, and use GPUs of one kind; or set LLMTRAIN_ATTENTION=own for all ranks",
      found);
}

std::string product_difference(std::span<const std::string> libraries, std::span<const std::string> hosts) {
  const std::string found = hosts_of_libraries(libraries, hosts);
  if (found.empty()) return {};
  return fmt::format(
      "the ranks use different libraries of matrix products, whose results differ in bits: {}. Install the same CUDA "
      "toolkit on all nodes, where LD_LIBRARY_PATH finds its libcublasLt",
      found);
}

std::string attention_text(const std::string& library, bool trains, const ModelConfig& model, DType compute) {
  if (library.empty() || !trains) return {};
  if (const char* why = fallback_reason(model, compute))
    return fmt::format("built-in attention: that of {} is not used {}", library, why);
  return "attention by " + library;
}

}  // namespace llmtrain
