// The format supports 1,000 ranks and the 723 tensors of a model of 70 billion parameters: a twin with tiny tensors is
// written and read, and prints its sizes and times.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "checkpoint/toy_state.hpp"

namespace llmtrain {
namespace {

/// Llama 3 70B: 80 blocks of 9 tensors, embedding, head and final norm; here with 8 to 64 columns.
std::vector<UnitSpec> llama_70b_twin() {
  const auto tensor = [](const std::string& name, int64_t rows, int64_t columns) {
    return ParamSpec{name, rows, columns, columns > 1, Initializer::zeros(), {{name, 0, rows}}};
  };
  std::vector<UnitSpec> units{{"embedding", {tensor("model.embed_tokens.weight", 1000, 8)}}};
  for (int b = 0; b < 80; ++b) {
    const std::string prefix = fmt::format("model.layers.{}.", b);
    UnitSpec block{fmt::format("block {}", b), {}};
    for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      block.params.push_back(tensor(prefix + name + ".weight", 64, 16));
    }
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) {
      block.params.push_back(tensor(prefix + name + ".weight", 16, 16));
    }
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
      block.params.push_back(tensor(prefix + name + ".weight", 64, 1));
    }
    units.push_back(std::move(block));
  }
  units.push_back({"head", {tensor("lm_head.weight", 1000, 8), tensor("model.norm.weight", 64, 1)}});
  return units;
}

TEST(LargeLayout, ThousandShardsOfSeventyBillionParametersTensors) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const bool memory = ::access("/dev/shm", W_OK) == 0;
  const std::string folder = (memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
                             ("llmtrain_large_layout_test_" + std::to_string(getpid()));
  const Schema schema = make_schema(llama_70b_twin());
  ASSERT_EQ(schema.tensors.size(), 723u);
  Clock::time_point start = Clock::now();
  const std::string path = test::write_layout(folder, schema, 1000, 1000);
  const double written = seconds(start);
  start = Clock::now();
  const Manifest manifest = verify_checkpoint(path, test::communicator());
  const double verified = seconds(start);
  start = Clock::now();
  std::vector<float> buffer(5000);
  int64_t elements = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    test::ToyTarget target(schema, 1000, rank, 3);
    load_checkpoint(path, manifest, target, buffer, test::communicator());
    EXPECT_EQ(target.wrong, 0);
    EXPECT_EQ(target.right, target.wanted_elements());
    elements += target.right;
  }
  std::cout << fmt::format(
      "1000 shards, {} tensors, {} elements of state: written in {:.1f} s, verified in {:.1f} s, read on 3 ranks in "
      "{:.1f} s; manifest {} bytes, view {} bytes, shard {} bytes\n",
      manifest.schema.tensors.size(), elements, written, verified, seconds(start),
      std::filesystem::file_size(path + "/" + manifest_name), manifest.files[0].bytes, manifest.shards[0].file.bytes);
  EXPECT_LT(std::filesystem::file_size(path + "/" + manifest_name), 1u << 20);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace llmtrain
