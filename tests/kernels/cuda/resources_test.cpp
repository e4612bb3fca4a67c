// No launch fails: for every kernel and architecture of the build, registers, spills and shared memory stay within the
// limits of a GPU; and later GPUs find PTX. Read from the code itself; no GPU, no driver.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/attention.hpp"
#include "kernels/cuda/attention_shape.hpp"
#include "kernels/cuda/cubin.hpp"
#include "kernels/cuda/product_shape.hpp"
#include "kernels/cuda/sampling_shape.hpp"

namespace llmtrain::test {
namespace {

using namespace cuda;

/// Local memory that a thread of a kernel may have, by name; the first match counts.
struct FrameLimit {
  const char* name;
  int64_t bytes;
  const char* why;
};
constexpr FrameLimit frame_limits[] = {
    {"Tiled", 0, "products on tensor cores live on their registers"},
    {"Decide", 32, "one thread decides once a step"},
    {"ScoreAndDifferentiate<", 0, "the dearest kernels beside products: benchmarks/kernel_code.py"},
    {"ForwardRow<", 0, "as above"},
    {"BackwardRows<", 0, "as above"},
    {"ForwardPack<", 0, "as above"},
    {"BackwardPack<", 0, "as above"},
    {"Rotate<", 0, "as above"},
    {"Update<", 0, "as above"},
    {"DequantizeBlocks<", 0, "as above"},
    {"AttendSplit<", 0, "as above"},
    {"FillTable", 64, "sine and cosine of large angles"},
    {"", 16, "a pack of elements at a ragged end, indexed"},
};

/// The norm of rows that a warp's registers do not hold.
bool is_long_norm(const std::string& name) {
  static const std::regex long_rows("ForwardRow<.*(PlainInput|InputWithBranch<[a-z0-9:_]+>), false>");
  return std::regex_search(name, long_rows);
}

/// Dynamic shared memory, for the largest head dimension of the kernel.
int64_t dynamic_shared_bytes(const std::string& name) {
  std::smatch match;
  static const std::regex tiled("Tiled(Forward|BackwardQuery|BackwardKey)<(\\d+), [^>]*>");
  if (std::regex_search(name, match, tiled)) {
    const int columns = std::stoi(match[2]);
    if (match[1] == "Forward") return tiled_shared_bytes(columns);
    return match[1] == "BackwardKey" ? tiled_key_shared_bytes(columns) : tiled_query_shared_bytes(columns);
  }
  if (name.find("TiledProducts<") != std::string::npos) return product_shared_bytes;
  static const std::regex by_rows("(Forward|BackwardQuery|BackwardKey)<[a-z0-9:_]+, (\\d+)[,>]");
  if (std::regex_search(name, match, by_rows)) {
    const int64_t head_dim = std::min<int64_t>(std::stoi(match[2]) * warp_lanes, max_head_dim);
    return row_shared_bytes(head_dim, match[1] == "Forward" ? 1 : 2, match[1] == "BackwardKey" ? 2 : 1);
  }
  if (name.find("ScoreAndDifferentiate<") != std::string::npos) return 96 << 10;  // logprob.cu
  if (name.find("SampleRow<") != std::string::npos) {
    return sampling_shared_bytes(1 << 20, name.find("SampleRow<true>") != std::string::npos);
  }
  if (is_long_norm(name)) return shared_bytes_of_block(0);  // norm.cu: longer rows lie in global memory
  return 0;
}

/// Error of a kernel; empty if there is none.
std::vector<std::string> violations(const KernelResources& k, int64_t dynamic_shared) {
  std::vector<std::string> found;
  const auto blame = [&](const auto&... parts) {
    std::ostringstream text;
    text << k.name << " for architecture " << k.architecture << ": ";
    (text << ... << parts);
    found.push_back(text.str());
  };
  if (k.threads <= 0 || k.threads > 1024 || k.threads % warp_lanes != 0) {
    blame(k.threads, " threads: state whole warps, at most 1024, in its launch bounds");
    return found;
  }
  // Registers are allocated to warps, 256 at a time.
  const int64_t of_warp = blocks_for(k.registers * warp_lanes, 256) * 256, of_block = k.threads / warp_lanes * of_warp;
  if (k.registers < 1 || k.registers > 255 || of_block > registers_of_block) {
    blame(k.registers, " registers in each of ", k.threads, " threads: a block has ", registers_of_block);
  }
  for (const FrameLimit& limit : frame_limits) {
    if (k.name.find(limit.name) == std::string::npos) continue;
    if (k.frame_bytes > limit.bytes) blame(k.frame_bytes, " bytes of local memory instead of ", limit.bytes);
    break;
  }
  const int64_t shared = k.shared_bytes + dynamic_shared;
  if (shared > shared_bytes_of_block(k.architecture)) blame(shared, " bytes of shared memory");
  return found;
}

std::vector<KernelResources> kernels_of(const char* file) {
  std::vector<KernelResources> all = read_kernel_resources(file);
  EXPECT_FALSE(all.empty()) << "no machine code of a GPU lies in " << file << ", or it is compressed";
  return all;
}

/// LLMTRAIN_ARCHITECTURES: "80-real,90-real,100". Machine code alone is "real", PTX alone "virtual"; else both exist.
std::set<int> architectures_without(const char* kind) {
  std::set<int> result;
  std::istringstream list(LLMTRAIN_ARCHITECTURES);
  for (std::string one; std::getline(list, one, ',');) {
    if (one.find(kind) == std::string::npos) result.insert(std::stoi(one));
  }
  return result;
}
std::set<int> compiled_architectures() { return architectures_without("virtual"); }

TEST(KernelResources, EveryKernelFitsEveryArchitecture) {
  std::map<std::string, std::set<int>> architectures;
  for (const KernelResources& k : kernels_of(LLMTRAIN_KERNELS)) {
    architectures[k.name].insert(k.architecture);
    for (const std::string& what : violations(k, dynamic_shared_bytes(k.name))) ADD_FAILURE() << what;
  }
  for (const auto& [name, compiled] : architectures) EXPECT_EQ(compiled, compiled_architectures()) << name;
  const auto long_norms = std::count_if(architectures.begin(), architectures.end(),
                                        [](const auto& kernel) { return is_long_norm(kernel.first); });
  EXPECT_GE(long_norms, 14) << "of residual streams and of given rows, in every pair of types";
}

/// Drivers compile it for GPUs that are newer than the compiler.
TEST(KernelResources, EveryKernelHasPtx) {
  std::set<std::string> names;
  for (const KernelResources& k : kernels_of(LLMTRAIN_KERNELS)) names.insert(k.name);
  const std::set<int> expected = architectures_without("real");
  if (expected.empty()) GTEST_SKIP() << "no PTX was asked for: " LLMTRAIN_ARCHITECTURES;
  const std::map<std::string, std::set<int>> found = read_ptx_kernels(LLMTRAIN_KERNELS);
  EXPECT_EQ(found.size(), names.size());
  for (const std::string& name : names) {
    const auto kernel = found.find(name);
    EXPECT_EQ(kernel == found.end() ? std::set<int>() : kernel->second, expected) << name;
  }
}

TEST(KernelResources, AttentionIsThereForEveryHeadDimension) {
  std::set<std::string> names;
  for (const KernelResources& k : kernels_of(LLMTRAIN_KERNELS)) names.insert(k.name);
  const auto has = [&](const std::string& part) {
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& name) { return name.find(part) != std::string::npos; });
  };
  for (int64_t head_dim = 1; head_dim <= max_head_dim; ++head_dim) {
    for (const char* pass : {"Forward", "BackwardQuery", "BackwardKey"}) {
      const std::string of_rows = std::string(pass) + "<float, " + std::to_string(row_registers(head_dim));
      EXPECT_TRUE(has(of_rows + ">") || has(of_rows + ", ")) << head_dim;
      if (head_dim > max_tiled) continue;
      for (const char* type : {"bf16", "f16"}) {
        const std::string columns = std::to_string(tile_columns(head_dim));
        const std::string tiled = std::string("Tiled") + pass + "<" + columns + ", llmtrain::" + type;
        EXPECT_TRUE(has(tiled + ">") || has(tiled + ", ")) << head_dim;
      }
    }
  }
  EXPECT_FALSE(has("TiledForward<7, "));
}

TEST(KernelResources, ProductsOfExpertsAreThereForEveryOperand) {
  std::set<std::string> products;
  for (const KernelResources& k : kernels_of(LLMTRAIN_KERNELS)) {
    if (k.name.find("TiledProducts<") != std::string::npos) products.insert(k.name);
  }
  EXPECT_EQ(products.size(), 2u * (2 + 2 + 1)) << "of two types: forward and of inputs, each to fp32 too; of weights";
  EXPECT_LE(2 * product_shared_bytes, 227 << 10) << "two blocks on a multiprocessor";
}

// The checks above can fail: each of the kernels that need too much is detected.
TEST(KernelResources, GreedyKernelsAreFound) {
  const auto found = [](const std::string& name, int64_t dynamic_shared) {
    std::vector<std::string> all;
    size_t seen = 0;
    for (const KernelResources& k : kernels_of(LLMTRAIN_GREEDY_KERNELS)) {
      if (k.name.find(name) == std::string::npos) continue;
      ++seen;
      for (std::string& what : violations(k, dynamic_shared)) all.push_back(std::move(what));
    }
    EXPECT_EQ(seen, compiled_architectures().size()) << name;
    return all;
  };
  using testing::AllOf;
  using testing::Each;
  using testing::HasSubstr;
  using testing::IsEmpty;
  using testing::Not;
  EXPECT_THAT(found("spilling_kernel", 0), AllOf(Not(IsEmpty()), Each(HasSubstr("local memory"))));
  EXPECT_THAT(found("unbounded_kernel", 0), AllOf(Not(IsEmpty()), Each(HasSubstr("launch bounds"))));
  EXPECT_THAT(found("sharing_kernel", 0), IsEmpty());
  EXPECT_THAT(found("sharing_kernel", 180 << 10), AllOf(Not(IsEmpty()), Each(HasSubstr("shared memory"))));
  const KernelResources wide{"wide", 90, 512, 136, 0, 0};
  EXPECT_THAT(violations(wide, 0), testing::ElementsAre(HasSubstr("136 registers in each of 512 threads")));
  EXPECT_THAT(violations({"narrow", 90, 512, 128, 0, 0}, 0), IsEmpty());
}

}  // namespace
}  // namespace llmtrain::test
