// cuDNN's attention without a GPU: for the shapes of the decks, and others, the graphs can be finalised for the
// description of a GPU and have deterministic engines. Skipped if cuDNN is not installed, unless LLMTRAIN_REQUIRE lists
// it.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "harness/required.hpp"
#include "kernels/cuda/cudnn_attention.hpp"
#include "kernels/cuda/cudnn_attention_graph.hpp"

namespace llmtrain::cuda {
namespace {

/// An H200, by attributes of CUDA's.
constexpr const char* hopper = R"({"deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000,
  "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "multiProcessorCount": 132,
  "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
  "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535], "regsPerBlock": 65536,
  "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 62914560, "totalGlobalMem": 150754820096,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000})";

class Cudnn : public testing::Test {
 protected:
  void SetUp() override {
    if (find_cudnn() == nullptr) return leave_out("no cuDNN is here");
    // Without a driver the library proposes nothing. The toolkit's stub driver is sufficient.
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
        dlopen(LLMTRAIN_CUDA_STUB, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      return leave_out("neither a driver nor the toolkit's stub is here (" LLMTRAIN_CUDA_STUB ")");
    }
    device_.emplace(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    device_->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, hopper, std::char_traits<char>::length(hopper));
    device_->finalize();
  }
  static void leave_out(const char* why) {
    if (test::is_required("cudnn")) FAIL() << why << "; LLMTRAIN_REQUIRE has cudnn";
    GTEST_SKIP() << "left out: " << why;
  }

  std::vector<CudnnDescriptor> engines(const CudnnAttention& a) const {
    CudnnGraph graph;
    build_attention(graph, a);
    EXPECT_GE(graph.operations(), 14U);
    return find_engines(graph.finish(nullptr), &*device_);
  }
  void expect_engines(int64_t batch, const AttentionShape& s, const std::string& what) const {
    ASSERT_TRUE(cudnn_suits(s)) << what;
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const bool backward : {false, true}) {
        const CudnnAttention a{batch, s.longest, s.heads, s.kv_heads, s.head_dim, cudnn_type(dtype), backward};
        const std::string pass = what + ", " + std::string(name_of(dtype)) + (backward ? ", backward" : ", forward");
        const std::vector<CudnnDescriptor> found = engines(a);
        ASSERT_FALSE(found.empty()) << pass;
        EXPECT_LE(workspace_bytes(found.front()), max_cudnn_workspace_bytes(a)) << pass;
      }
    }
  }

  std::optional<CudnnDescriptor> device_;
};

AttentionShape shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t longest) {
  return {heads, kv_heads, head_dim, 0, 0.125F, 0, longest};
}

/// Value of `key = number` in a shipped deck.
int64_t number_in(const std::string& deck, const std::string& key) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(deck, match, std::regex("(^|\n)" + key + " *= *([0-9]+)"))) << key;
  return match.empty() ? 0 : std::stoll(match[2]);
}

TEST_F(Cudnn, ShapesOfAllDecksHaveEngines) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator("inputs")) {
    if (entry.path().extension() != ".ini") continue;
    std::ifstream file(entry.path());
    const std::string deck((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (deck.find("\npath = ") != std::string::npos) continue;  // the model's folder has its shape
    const int64_t heads = number_in(deck, "n_heads"), batch = number_in(deck, "micro");
    expect_engines(batch, shape(heads, heads, number_in(deck, "d_model") / heads, number_in(deck, "sequence_length")),
                   entry.path().filename().string());
    ++decks;
  }
  EXPECT_GE(decks, 5);
}

TEST_F(Cudnn, ShapesOfPublishedModelsHaveEngines) {
  expect_engines(64, shape(12, 12, 64, 1024), "GPT-2 124M");
  expect_engines(16, shape(25, 25, 64, 1024), "GPT-2 1558M");
  expect_engines(2, shape(32, 8, 128, 2048), "Llama 3 8B");
  expect_engines(1, shape(32, 8, 128, 8192), "Llama 3 8B, long");
  expect_engines(4, shape(14, 2, 64, 4096), "Qwen 2.5 0.5B");
  expect_engines(3, shape(2, 1, 8, 64), "the smallest");
  expect_engines(2, shape(6, 3, 104, 192), "no power of two");
}

// The user must fix a broken installation; it is never a reason to use a different engine on this rank.
TEST_F(Cudnn, ABrokenInstallationIsNoMissingEngine) {
  for (const cudnnStatus_t status :
       {CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED, CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING}) {
    EXPECT_THROW(cudnn_check(status, "a call"), UserError) << status;
  }
  EXPECT_THROW(cudnn_check(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "a call"), CudnnError) << "control";
}

// Problems that the graphs cannot express are rejected before they are built; and not every problem has an engine.
TEST_F(Cudnn, OtherShapesAreOurs) {
  EXPECT_FALSE(cudnn_suits(shape(2, 2, 20, 128)));
  EXPECT_TRUE(engines({2, 128, 2, 2, 20, CUDNN_DATA_BFLOAT16, false}).empty());
  EXPECT_TRUE(engines({2, 128, 2, 2, 20, CUDNN_DATA_BFLOAT16, true}).empty());
  EXPECT_FALSE(cudnn_suits(shape(2, 2, 256, 128)));
  EXPECT_FALSE(cudnn_suits(shape(2, 2, 64, 0)));
  EXPECT_FALSE(cudnn_suits(shape(2, 2, 64, 100)));
  EXPECT_FALSE(cudnn_suits(shape(64, 8, 128, 8192))) << "8 GiB of scores";
  AttentionShape capped = shape(2, 2, 64, 128), windowed = capped, wide = capped;
  capped.softcap = 30;
  windowed.window = 127;
  wide.window = 128;
  EXPECT_FALSE(cudnn_suits(capped));
  EXPECT_FALSE(cudnn_suits(windowed));
  EXPECT_TRUE(cudnn_suits(wide));
}

// A proposed engine may fail. Without a GPU the next one gets as far as the driver.
TEST_F(Cudnn, EnginesAreTriedInTurn) {
  for (const bool backward : {false, true}) {
    const CudnnAttention a{2, 128, 2, 2, 64, CUDNN_DATA_HALF, backward};
    const int64_t most = max_cudnn_workspace_bytes(a);
    std::vector<CudnnDescriptor> bad_first;
    bad_first.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);  // without an engine
    EXPECT_FALSE(make_plan(bad_first, most, nullptr, &*device_).has_value());
    for (CudnnDescriptor& engine : engines(a)) bad_first.push_back(std::move(engine));
    try {
      EXPECT_TRUE(make_plan(bad_first, most, nullptr, &*device_).has_value()) << "the second engine was not tried";
      EXPECT_FALSE(make_plan(bad_first, -1, nullptr, &*device_).has_value()) << "more workspace than there is";
    } catch (const CudnnError& error) {
      EXPECT_EQ(error.status(), CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) << error.what();
    }
  }
}

TEST(CudnnChoice, BatchesOfWholeSequencesOnly) {
  const AttentionShape s = shape(2, 2, 64, 128);
  Batch batch;
  batch.tokens = 384;
  batch.segment_count = 3;
  batch.longest_segment = 128;
  EXPECT_TRUE(is_uniform(batch, s));
  batch.segment_count = 4;  // 128, 128, 100, 28
  EXPECT_FALSE(is_uniform(batch, s));
  batch.segment_count = 6;
  batch.longest_segment = 64;
  EXPECT_FALSE(is_uniform(batch, s));
}

TEST(CudnnChoice, TheEnvironmentAndTheGpuDecide) {
  EXPECT_EQ(attention_choice(nullptr), AttentionChoice::automatic);
  EXPECT_EQ(attention_choice("auto"), AttentionChoice::automatic);
  EXPECT_EQ(attention_choice("own"), AttentionChoice::own);
  EXPECT_EQ(attention_choice("cudnn"), AttentionChoice::cudnn);
  EXPECT_THROW(attention_choice("flash"), UserError);
  for (const auto choice : {AttentionChoice::automatic, AttentionChoice::own})
    refuse_missing_cudnn(choice, "it is not there");
  try {
    refuse_missing_cudnn(AttentionChoice::cudnn, "it is not there");
    ADD_FAILURE() << "what is asked for is missing, and nobody says so";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::missing_input);
    EXPECT_STREQ(error.what(), "LLMTRAIN_ATTENTION is 'cudnn', but it is not there; or set it to auto or own");
  }
  EXPECT_TRUE(cudnn_is_faster(90));
  for (const int capability : {80, 86, 100}) EXPECT_FALSE(cudnn_is_faster(capability));
}

}  // namespace
}  // namespace llmtrain::cuda
