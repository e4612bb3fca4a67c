// Decks that the pages start on GPUs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "decks/program.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

/// Decks that the pages start on GPUs.
std::set<std::string> decks_for_gpus() {
  std::set<std::string> found;
  const std::regex name("inputs/[a-z_]+\\.ini");
  for (const char* page : {"docs/gpu.md", "docs/cluster.md", "jobs/train_gpu.sbatch"}) {
    std::istringstream text(read_file(source_folder() / page));
    for (std::string line; std::getline(text, line);) {
      const bool starts = std::string_view(page) == "docs/gpu.md" || line.find("train_gpu.sbatch") != std::string::npos;
      for (std::sregex_iterator at(line.begin(), line.end(), name), end; starts && at != end; ++at) {
        found.insert(at->str());
      }
    }
  }
  return found;
}

int64_t number_after(const std::string& text, const std::string& key) {
  const size_t at = text.find("\n" + key + " = ");
  return at == std::string::npos ? -1 : std::strtoll(text.c_str() + at + key.size() + 4, nullptr, 10);
}

// Passes of few tokens leave a GPU idle, and a group for each of them reads and writes all gradients.
TEST(GpuDecks, FillAGpuAndFit) {
  const TemporaryFolder folder;
  constexpr int64_t cudnn_scores = int64_t{4} << 30, gpu = int64_t{80} << 30, tokens_of_a_pass = 16384;
  const std::set<std::string> decks = decks_for_gpus();
  EXPECT_GE(decks.size(), 2U);
  for (const std::string& name : decks) {
    SCOPED_TRACE(name);
    const std::string path = (source_folder() / name).string(), cache = "data.cache=" + (folder / "cache").string();
    const std::string resolved = llmtrain({1, 1, {path, "--check"}}).output;
    const int64_t micro = number_after(resolved, "micro"), groups = number_after(resolved, "reduction_groups");
    EXPECT_GT(micro, 1) << resolved;
    EXPECT_GE(micro * number_after(resolved, "sequence_length"), tokens_of_a_pass);
    EXPECT_GE(number_after(resolved, "global") / micro, 2 * groups) << "several passes for a group";
    for (const char* ranks : {"1", "16"}) {
      const Outcome outcome = llmtrain({1, 1, {path, cache, "--estimate", "--json", "--ranks", ranks}});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
      const auto estimate = nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
      EXPECT_LT(estimate["bytes_per_rank"]["total"].get<int64_t>() + cudnn_scores, gpu) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace llmtrain::test
