// Decoding on a GPU: what a token costs the host, and passes as graphs. On an emulated GPU, whose streams do nothing
// before the host waits for them.
#include <gtest/gtest.h>

#include <algorithm>

#include "emulator/copies.hpp"
#include "emulator/emulator.hpp"
#include "generate/machine.hpp"

namespace llmtrain {
namespace {

using test::Machine;
using test::request_of;

Machine machine_of(const std::vector<std::string>& keys, bool graphs) {
  return {keys, DType::f32, 5, 48, true, {}, 0, {}, graphs};
}

struct Cost {
  int64_t copies, waits, pageable, allocations, launches, forward;
  bool operator==(const Cost&) const = default;
};

/// The cost of ten tokens of each text, after others.
Cost cost_of_ten(Machine& machine, bool recorded, GenerationRequest request) {
  const auto run = [&](int64_t tokens) {
    request.max_new_tokens = tokens;
    const auto now = [&] {
      const emulator::Counts& c = emulator::counts();
      return Cost{emulator::copies(), c.idle_waits, c.pageable_copies, c.allocations, c.launches, machine.passes()};
    };
    const Cost before = now();
    recorded ? machine.run(request) : machine.run_alone(request);
    const Cost after = now();
    return Cost{after.copies - before.copies,     after.waits - before.waits,
                after.pageable - before.pageable, after.allocations - before.allocations,
                after.launches - before.launches, after.forward - before.forward};
  };
  run(20);
  const Cost few = run(10), many = run(20);
  return {many.copies - few.copies,           many.waits - few.waits,       many.pageable - few.pageable,
          many.allocations - few.allocations, many.launches - few.launches, many.forward - few.forward};
}

TEST(DeviceDecoding, TakesOneUploadAndOneCopyOfResultsForAToken) {
  Machine plain = machine_of({"model.family=llama"}, false), graphs = machine_of({"model.family=llama"}, true);
  for (const SamplingOptions& sampling :
       std::vector<SamplingOptions>{{.temperature = 0}, {.temperature = 0.8}, {.top_k = 7, .top_p = 0.97}}) {
    GenerationRequest request = request_of(0);
    request.sampling = sampling;
    const Cost cost = cost_of_ten(plain, false, request);
    EXPECT_EQ(cost.copies, 20);
    EXPECT_EQ(cost.waits, 10);
    EXPECT_EQ(cost.pageable, 0);
    EXPECT_EQ(cost.allocations, 0);
    EXPECT_EQ(cost.forward, 10);
    Cost as_graphs = cost;
    as_graphs.forward = 0;
    EXPECT_EQ(cost_of_ten(graphs, false, request), as_graphs) << "the same kernels and copies, launched as one";
  }
  EXPECT_EQ(cost_of_ten(plain, true, request_of(0)).copies, 30) << "control: logits are copied as well";
}

// Texts end at different tokens: there are graphs for several numbers of them.
TEST(DeviceDecoding, GraphsGiveTheSameTokens) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {"model.family=llama", "model.n_kv_heads=2"}, {"model.family=gemma2", "model.sliding_window=9"}}) {
    Machine plain = machine_of(keys, false), graphs = machine_of(keys, true);
    const auto tokens = [&](Machine& machine, const GenerationRequest& request) {
      std::vector<std::vector<int32_t>> all;
      for (Continuation& c : machine.run_alone(request)) all.push_back(std::move(c.tokens));
      return all;
    };
    std::vector<std::vector<int32_t>> last;
    for (const SamplingOptions& sampling :
         std::vector<SamplingOptions>{{.temperature = 0}, {}, {.temperature = 1.3, .top_p = 0.9}, {}}) {
      for (const uint64_t seed : {1u, 2u}) {
        GenerationRequest request = request_of(14);
        request.sampling = sampling;
        request.seed = seed;
        request.samples = 2;
        request.eos = {3, 14, 15, 27, 40};
        const int64_t before_plain = plain.passes();
        const auto expected = tokens(plain, request);
        const int64_t before = graphs.passes(), plainly = plain.passes() - before_plain;
        EXPECT_EQ(tokens(graphs, request), expected);
        EXPECT_LT(graphs.passes() - before, plainly) << "passes that the host submits";
        EXPECT_NE(expected, last) << "control: another distribution or seed, except that of the highest logits";
        if (sampling.temperature > 0 || seed == 2) last = expected;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
