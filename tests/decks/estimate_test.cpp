// The state of models in --estimate, byte for byte: values from their published shapes and the formulas of ZeRO
// (Rajbhandari et al. 2020, section 5), those of QLoRA, and the additions for accumulation.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>
#include <vector>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

const TinyDeck deck{1, "", "[evaluation]\nat_end = false\n"};

class EstimateDeck : public RunFolder {
 protected:
  EstimateDeck() : RunFolder(text_of_lines(60), deck.text()) {}

  nlohmann::json estimate(int ranks, const std::vector<std::string>& settings) const {
    std::vector<std::string> all = arguments("a", settings);
    all.insert(all.end(), {"--estimate", "--json", "--ranks", std::to_string(ranks)});
    const Outcome outcome = llmtrain({1, 1, all});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
  }
};

/// A Llama with an untied head.
struct Llama {
  const char* name;
  int64_t parameters;  ///< as published
  int64_t layers, width, heads, kv_heads, d_ff, vocabulary;

  int64_t table() const { return vocabulary * width; }
  int64_t head() const { return width + table(); }  ///< with the norm before it
  int64_t block() const {
    const int64_t queries_and_output = 2 * width * width, keys_and_values = 2 * width * (width / heads * kv_heads);
    return queries_and_output + keys_and_values + 3 * width * d_ff + 2 * width;
  }
  /// Matrices of a block, as rows and columns: query, key and value; output; gate and up; down.
  std::vector<std::pair<int64_t, int64_t>> matrices() const {
    return {{width + 2 * (width / heads * kv_heads), width}, {width, width}, {2 * d_ff, width}, {width, d_ff}};
  }
  std::vector<std::string> settings() const {
    return {"model.family=llama",
            "model.n_layers=" + std::to_string(layers),
            "model.d_model=" + std::to_string(width),
            "model.n_heads=" + std::to_string(heads),
            "model.n_kv_heads=" + std::to_string(kv_heads),
            "model.d_ff=" + std::to_string(d_ff),
            "model.vocab_size=" + std::to_string(vocabulary)};
  }
};

const Llama of_7b{"7B", 6'738'415'616, 32, 4096, 32, 32, 11008, 32000};
const Llama of_70b{"70B", 70'553'706'496, 80, 8192, 64, 8, 28672, 128256};

constexpr int64_t ranks = 64, ranks_of_node = 8;

/// Elements of the last rank, whose shards are the largest: shards are whole chunks of 256 elements, and nothing else
/// is padded.
int64_t shard_of(int64_t segment, int64_t of_ranks) { return (segment / 256 + of_ranks - 1) / of_ranks * 256; }
int64_t shard(int64_t segment) { return shard_of(segment, ranks); }

constexpr int64_t most = int64_t{1} << 26;  ///< elements of a segment

/// Cuts `elements` into parts of `each`.
std::vector<int64_t> cut(int64_t elements, int64_t each) {
  std::vector<int64_t> parts;
  for (; elements > 0; elements -= parts.back()) parts.push_back(std::min(each, elements));
  return parts;
}

/// A table is cut into equal segments of whole chunks.
std::vector<int64_t> segments_of_table(int64_t elements) {
  const int64_t count = (elements + most - 1) / most;
  return cut(elements, (elements / 256 + count - 1) / count * 256);
}

/// A matrix of a block is cut into segments of 128 rows or a multiple; the norms' weights are a segment of their own.
std::vector<int64_t> segments_of_block(const Llama& m) {
  if (m.block() <= most) return {m.block()};
  std::vector<int64_t> all;
  for (const auto& [rows, columns] : m.matrices()) {
    const int64_t fitting = most / columns / 128 * 128, count = (rows + fitting - 1) / fitting;
    for (const int64_t part : cut(rows, ((rows + count - 1) / count + 127) / 128 * 128)) all.push_back(part * columns);
  }
  all.push_back(2 * m.width);
  return all;
}

nlohmann::json zero(const Llama& m, int64_t bytes_of_weight, int stage) {
  const std::vector<int64_t> table = segments_of_table(m.table()), head = segments_of_table(m.head());
  const std::vector<int64_t> block = segments_of_block(m);
  const auto sum = [](const std::vector<int64_t>& segments) {
    int64_t n = 0;
    for (const int64_t segment : segments) n += shard(segment);
    return n;
  };
  const int64_t psi = m.parameters, shards = sum(table) + m.layers * sum(block) + sum(head);
  // Gathered weights belong to two neighbouring units, gradients that are not yet summed to the head and a segment of
  // a block; those of norms have buffers of their own.
  const int64_t two_units = std::max(m.block(), m.head()) + m.block();
  const int64_t largest = *std::ranges::max_element(block);
  const int64_t unsummed = m.head() + largest + m.layers * 2 * m.width;
  const bool own_master = bytes_of_weight == 4;  // fp32 weights are their own master
  const int64_t weights = bytes_of_weight * (stage < 3 ? psi : two_units) + (stage == 3 && own_master ? 4 * shards : 0);
  const int64_t gradients = 4 * (stage < 2 ? psi : unsummed) + 4 * shards;  // and their sums
  const int64_t optimizer = (own_master ? 8 : 12) * (stage == 0 ? psi : shards);
  // Two segments at a time, from every rank of other nodes.
  const int64_t exchanged = std::max({largest, table.front(), head.front()});
  const int64_t received = 2 * 4 * (ranks - ranks_of_node) * shard(exchanged);
  return {{"weights", weights}, {"gradients", gradients}, {"optimizer", optimizer}, {"communication", received}};
}

struct Case {
  Llama model;
  const char* compute;
  int64_t bytes_of_weight;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model.name << ' ' << c.compute; }

class ZeroEstimate : public EstimateDeck, public ::testing::WithParamInterface<Case> {};

TEST_P(ZeroEstimate, OfPublishedModelsIsThatOfTheFormulas) {
  const auto& [model, compute, bytes_of_weight] = GetParam();
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<std::string> settings = model.settings();
    settings.insert(settings.end(), {"precision.compute=" + std::string(compute), "batch.micro=1",
                                     "batch.global=" + std::to_string(ranks), "parallel.zero=" + std::to_string(stage),
                                     "--ranks-per-node", std::to_string(ranks_of_node)});
    const nlohmann::json j = estimate(ranks, settings);
    EXPECT_EQ(j["parameters"], model.parameters);
    nlohmann::json state;
    for (const char* part : {"weights", "gradients", "optimizer", "communication"}) {
      state[part] = j["bytes_per_rank"][part];
    }
    for (int other = 0; other <= 3; ++other) {
      const nlohmann::json expected = zero(model, bytes_of_weight, other);
      if (other == stage) {
        EXPECT_EQ(state, expected) << "stage " << stage;
      } else {
        EXPECT_NE(state, expected) << "control: stage " << stage << " by the formulas of " << other;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Llama, ZeroEstimate,
                         ::testing::Values(Case{of_7b, "bf16", 2}, Case{of_7b, "fp32", 4}, Case{of_70b, "bf16", 2},
                                           Case{of_70b, "fp32", 4}),
                         [](const auto& test) { return test.param.model.name + std::string(test.param.compute); });

// QLoRA of published models with ZeRO 3: nf4, doubly quantised, beside adapters of every linear layer, in bf16.

struct Base {
  const char* name;
  const char* type;
  int64_t layers, width, heads, kv_heads, d_ff, vocabulary;

  int64_t table() const { return vocabulary * width; }
  /// Linear layers of a block, as rows and columns.
  std::vector<std::pair<int64_t, int64_t>> matrices() const {
    const int64_t keys = width / heads * kv_heads;
    return {{width, width}, {keys, width}, {keys, width}, {width, width}, {d_ff, width}, {d_ff, width}, {width, d_ff}};
  }
  nlohmann::json config() const {
    return {{"model_type", type},           {"hidden_size", width},
            {"intermediate_size", d_ff},    {"num_hidden_layers", layers},
            {"num_attention_heads", heads}, {"num_key_value_heads", kv_heads},
            {"vocab_size", vocabulary},     {"max_position_embeddings", 4096},
            {"sliding_window", nullptr},    {"rms_norm_eps", 1e-5},
            {"hidden_act", "silu"},         {"tie_word_embeddings", false}};
  }
};

constexpr int64_t adapter_rank = 16;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t bytes_of_bf16(int64_t elements) { return 2 * elements; }
/// 4 bits, and 8 bits for every 64 elements.
int64_t bytes_of_nf4(int64_t elements) { return elements / 2 + elements / 64; }

/// Bytes of the largest shards of all segments of a unit, which is cut as a table is; one rank has it whole.
int64_t frozen(int64_t (*bytes)(int64_t), int64_t elements, int64_t of_ranks) {
  if (of_ranks == 1) return aligned(bytes(elements));
  int64_t sum = 0;
  for (const int64_t segment : segments_of_table(elements)) sum += aligned(bytes(shard_of(segment, of_ranks)));
  return sum;
}

nlohmann::json qlora(const Base& m, int64_t of_ranks) {
  int64_t matrices = 0, adapters = 0, scales = 0;  // of a block
  for (const auto& [rows, columns] : m.matrices()) {
    matrices += rows * columns;
    adapters += adapter_rank * (rows + columns);
    scales += 4 * (1 + rows * columns / 64 / 256);  // an offset, and the scale of 256 scales
  }
  const int64_t norms = 2 * m.width, head = m.table() + m.width;
  int64_t weights =
      m.layers * (frozen(bytes_of_nf4, matrices, of_ranks) + frozen(bytes_of_bf16, norms, of_ranks) + aligned(scales)) +
      frozen(bytes_of_bf16, m.table(), of_ranks) + frozen(bytes_of_bf16, head, of_ranks) +
      2 * bytes_of_bf16(adapters);  // of two blocks, from the masters
  if (of_ranks > 1) weights += 2 * bytes_of_nf4(matrices) + bytes_of_bf16(m.table() + head + m.layers * norms);
  const int64_t shards = m.layers * shard_of(adapters, of_ranks);
  const int64_t received = of_ranks > 8 ? 2 * 4 * (of_ranks - 8) * shard_of(adapters, of_ranks) : 0;
  return {{"weights", weights},
          {"gradients", 4 * (shards + (of_ranks > 1 ? 2 * adapters : 0))},
          {"optimizer", 12 * shards},
          {"communication", received}};
}

class QloraEstimate : public EstimateDeck, public ::testing::WithParamInterface<Base> {
 protected:
  nlohmann::json bytes(int of_ranks, const std::vector<std::string>& more) const {
    write_file(folder / "config.json", GetParam().config().dump());
    std::string ids = "3";
    for (int i = 1; i < 2048; ++i) ids += ",3";
    write_file(folder / "rows.jsonl", "{\"input_ids\": [" + ids + "]}\n");
    write_file(folder / "qlora.ini", "[run]\nfinetuning = lora\nmax_steps = 1\n[data]\nvalidation_fraction = 0\n");
    std::vector<std::string> all = {(folder / "qlora.ini").string(),
                                    "run.output=" + folder.text(),
                                    "model.path=" + folder.text(),
                                    "data.train=" + (folder / "rows.jsonl").string(),
                                    "data.packing=none",
                                    "batch.sequence_length=2048",
                                    "batch.micro=1",
                                    "batch.global=" + std::to_string(of_ranks),
                                    "lora.r=" + std::to_string(adapter_rank),
                                    "precision.compute=bf16",
                                    "parallel.zero=3",
                                    "memory.recompute=block",
                                    "evaluation.at_end=false",
                                    "checkpoint.at_end=false",
                                    "--estimate",
                                    "--json",
                                    "--ranks",
                                    std::to_string(of_ranks),
                                    "--ranks-per-node",
                                    std::to_string(std::min(of_ranks, 8))};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = llmtrain({1, 1, all});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')))["bytes_per_rank"];
  }
};

TEST_P(QloraEstimate, OfPublishedModelsIsThatOfTheFormulasAndOfTheDocumentation) {
  const Base& m = GetParam();
  const std::string page = read_file(source_folder() / "docs/quantization.md");
  for (const int of_ranks : {1, 8, 64}) {
    const nlohmann::json found = bytes(of_ranks, {"quantization.bits=4"}), expected = qlora(m, of_ranks);
    std::string row = fmt::format("| {} | {} |", m.name, of_ranks);
    double sum = 0;
    for (const char* part : {"weights", "gradients", "optimizer", "activations", "communication"}) {
      EXPECT_EQ(found[part], expected.value(part, found[part])) << of_ranks << " ranks: " << part;
      sum += found[part].get<double>();
      row += fmt::format(" {:.2f} |", found[part].get<double>() / 1e9);
    }
    row += fmt::format(" {:.2f} |", sum / 1e9);
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
  EXPECT_NE(bytes(8, {"quantization.bits=4", "quantization.double=false"})["weights"], qlora(m, 8)["weights"])
      << "control";
}

INSTANTIATE_TEST_SUITE_P(Models, QloraEstimate,
                         ::testing::Values(Base{"Llama-2-7B", "llama", 32, 4096, 32, 32, 11008, 32000},
                                           Base{"Mistral-7B", "mistral", 32, 4096, 32, 8, 14336, 32000},
                                           Base{"Llama-2-70B", "llama", 80, 8192, 64, 8, 28672, 32000}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase(name, '-');
                           return name;
                         });

/// A row of 131,072 tokens, which trains a Llama of 1B.
class LongEstimate : public EstimateDeck {
 protected:
  LongEstimate() {
    std::string ids = "3";
    for (int i = 1; i < length; ++i) ids += ",3";
    write_file(folder / "rows.jsonl", "{\"input_ids\": [" + ids + "]}\n");
  }
  nlohmann::json of(int context, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> settings = Llama{"1B", 0, 16, 2048, 32, 8, 8192, 128256}.settings();
    settings.insert(settings.end(),
                    {"data.train=" + (folder / "rows.jsonl").string(), "data.packing=none",
                     fmt::format("batch.sequence_length={}", length), "batch.micro=1", "batch.global=8",
                     "precision.compute=bf16", "parallel.reduction=tree", fmt::format("parallel.context={}", context)});
    settings.insert(settings.end(), more.begin(), more.end());
    return estimate(8, settings);
  }
  static constexpr int length = 131072;
};

TEST_F(LongEstimate, RanksThatShareRowsDivideTheActivations) {
  const auto activations = [](const nlohmann::json& j) { return j["bytes_per_rank"]["activations"].get<double>(); };
  const nlohmann::json one = of(1);
  const double whole = activations(one);
  for (const int context : {2, 4, 8}) {
    const nlohmann::json j = of(context);
    EXPECT_LE(activations(j), 1.3 * whole / context) << context;
    EXPECT_GE(activations(j), whole / context) << context;
    EXPECT_EQ(j["mesh"], (nlohmann::json{{"data", 8 / context}, {"context", context}, {"tensor", 1}}));
    EXPECT_GT(j["traffic"]["context"]["node_bytes"].get<double>(), 0);
  }
  EXPECT_LE(activations(of(8)), whole / 6);
}

TEST_F(LongEstimate, AMeshIsProposedThatFits) {
  const nlohmann::json free = of(1)["proposal"];
  EXPECT_EQ(free["fits"], true);
  const auto limit = [](const nlohmann::json& j) {
    return fmt::format("memory.limit={}", j["bytes_per_rank"]["total"].get<int64_t>());
  };
  const nlohmann::json proposal = of(1, {limit(of(4))})["proposal"];
  EXPECT_EQ(proposal["fits"], true);
  EXPECT_GE(proposal["context"], 4);
  const nlohmann::json none = of(1, {"memory.limit=1GiB"})["proposal"];
  EXPECT_EQ(none["fits"], false);
  EXPECT_EQ(none["context"], 8);
  EXPECT_EQ(none["recompute"], "block");
  EXPECT_EQ(none["zero"], 3);
}

/// Sizes of a GPT-2 with four blocks.
class Accumulation : public EstimateDeck {
 protected:
  static constexpr int64_t width = 256, rows_of_tables = 512 + 32;  // tokens, positions
  static constexpr int64_t embedding = rows_of_tables * width, block = 12 * width * width + 13 * width;
  static constexpr int64_t norm = 2 * width;

  /// Without the process, whose memory is measured.
  int64_t planned(int of_ranks, int stage, int sequences, int groups = 0) const {
    const auto bytes = estimate(
        of_ranks, {"model.d_model=256", "model.n_layers=4", "model.vocab_size=512", "batch.micro=1",
                   "batch.global=" + std::to_string(sequences), "parallel.reduction_groups=" + std::to_string(groups),
                   "parallel.zero=" + std::to_string(stage)})["bytes_per_rank"];
    return bytes["total"].get<int64_t>() - bytes["libraries"].get<int64_t>();
  }
};

TEST_F(Accumulation, AddsNothingWhereGroupsHaveOneMicroBatchAndGradientsAreDivided) {
  for (const int stage : {2, 3}) {
    for (const int several : {2, 4}) {
      const int64_t without = planned(several, stage, several);
      EXPECT_EQ(planned(several, stage, 4), without) << several << " ranks, stage " << stage;
      EXPECT_EQ(planned(several, stage, 16), without) << several << " ranks, stage " << stage;
      // Control: groups of several micro-batches add up in a whole gradient, which includes the two blocks' buffers.
      EXPECT_EQ(planned(several, stage, 16, 4), without + 4 * (4 - 2) * block) << several << " ranks";
    }
  }
}

// A group's gradient is stored separately from the sum over groups, or the sum would not have the bits of several
// ranks: blocks use two buffers in turn; the embedding, which both ends of the backward pass write to, and the last
// norm have buffers of their own. The gradient of a step's only group is the sum.
TEST_F(Accumulation, AddsTwoBlocksAndTheEmbeddingToOneRank) {
  for (const int stage : {0, 1, 2, 3}) {
    const int64_t without = planned(1, stage, 1);
    EXPECT_EQ(planned(1, stage, 4), without + 4 * (embedding + 2 * block + norm)) << "stage " << stage;
    EXPECT_EQ(planned(1, stage, 16), planned(1, stage, 4)) << "stage " << stage;
    EXPECT_EQ(planned(1, stage, 16, 1), without) << "one group, stage " << stage;
  }
}

}  // namespace
}  // namespace llmtrain::test
