#pragma once
// Trains the toy model through a ParamStore on all ranks, with the order of calls of a decoder.

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <optional>
#include <tuple>
#include <vector>

#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "parallel/toy_model.hpp"
#include "parallel/traffic.hpp"
#include "params/param_store.hpp"
#include "params/planned_memory.hpp"

namespace llmtrain::test {

struct ToyResult {
  Parameters parameters;      ///< at the end, on every rank
  int64_t wrong_weights = 0;  ///< elements read between acquire and release that are not the last step's parameters
  int64_t dirty_padding = 0;  ///< elements of gradient sums between tensors that are not zero
  TrafficCounts traffic;      ///< of this rank in the first step
};

/// Offload setting; the units are split into many pieces.
struct ToyOffload {
  Offload optimizer = Offload::none, parameters = Offload::none;
  bool unread = false;  ///< between steps only passes access the state, and only the weights
};

class ToyTrainer {
 public:
  ToyTrainer(const ToyRun& run, DType compute, int stage, const ToyOffload& offload = {},
             int64_t segment_elements = default_segment_elements)
      : run_(run),
        compute_(compute),
        units_(toy_units(run.tied)),
        store_(units_, options(stage, offload, segment_elements)),
        unread_(offload.unread),
        expected_(initial_parameters(units_)) {
    store_.plan(arena_);
    memory_.emplace(arena_, communicator());
    store_.start(communicator(), stream());
    for (int u = 0; u < store_.units().size(); ++u) {
      for (size_t p = 0; p < units_[static_cast<size_t>(u)].params.size(); ++p) {
        test::set_parameter(store_, u, static_cast<int>(p), expected_[static_cast<size_t>(u)][p].data());
      }
    }
    store_.publish_weights();
  }

  ToyResult train() {
    for (int64_t step = 0; step < run_.steps; ++step) {
      traffic().begin_step();
      store_.reducer().begin_step(groups_of(run_, step));
      for (int64_t round = 0; round < store_.reducer().rounds(); ++round) {
        const int64_t group = store_.reducer().begin_round(round);
        for (int64_t mb = 0; mb < run_.micro_batches; ++mb) {
          store_.reducer().begin_micro_batch(mb == 0, mb + 1 == run_.micro_batches);
          forward();
          backward(step, group, mb);
        }
      }
      store_.reducer().finish();
      update_shards();
      traffic().end_step();
      if (step == 0) result_.traffic = traffic().last_step();
      if (!unread_) read_parameters();
      expected_ = unread_ ? toy_reference(run_, step + 1) : result_.parameters;
    }
    if (unread_) read_parameters();
    return result_;
  }
  const UnitStates& units() const { return store_.units(); }

 private:
  ParamStoreOptions options(int stage, const ToyOffload& offload, int64_t segment_elements) const {
    ParamStoreOptions o;
    o.segment_elements = segment_elements;
    o.offload_optimizer = offload.optimizer;
    o.offload_parameters = offload.parameters;
    o.offload_path = std::filesystem::temp_directory_path().string();
    o.offload_piece = 4 * chunk_elements;
    o.compute = compute_;
    o.zero_stage = stage;
    o.rank = communicator().rank();
    o.size = communicator().size();
    o.node_size = ranks_with_shared_memory();
    o.ranks_per_node = communicator().adding_ranks_per_node();
    o.reduction = run_.tree ? Reduction::tree : Reduction::ordered;
    o.groups = run_.groups;
    o.blocks = run_.blocks;
    o.micro_batches_per_group = run_.micro_batches;
    return o;
  }

  int last_unit() const { return store_.units().size() - 1; }

  void use(int unit, int next) {
    store_.acquire(unit);
    if (next >= 0) store_.prefetch(next);
    for (size_t p = 0; p < units_[static_cast<size_t>(unit)].params.size(); ++p) {
      check_weight(store_.weight(unit, static_cast<int>(p)), expected_[static_cast<size_t>(unit)][p]);
    }
    store_.release(unit);
  }

  void check_weight(const Tensor& weight, const Values& expected) {
    std::vector<char> bytes(static_cast<size_t>(weight.bytes()));
    copy_to_host(bytes.data(), weight.data, weight.bytes(), stream());
    stream().synchronize();
    EXPECT_EQ(weight.numel(), static_cast<int64_t>(expected.size()));
    EXPECT_EQ(weight.dtype, compute_);
    for (size_t i = 0; i < expected.size(); ++i) {
      const float seen = compute_ == DType::f32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                                : static_cast<float>(reinterpret_cast<const bf16*>(bytes.data())[i]);
      const float wanted = compute_ == DType::f32 ? expected[i] : static_cast<float>(bf16(expected[i]));
      if (std::bit_cast<uint32_t>(seen) != std::bit_cast<uint32_t>(wanted)) ++result_.wrong_weights;
    }
  }

  void forward() {
    for (int u = 0; u <= last_unit(); ++u) use(u, u < last_unit() ? u + 1 : -1);
    if (run_.tied) use(0, last_unit());
  }

  void backward(int64_t step, int64_t group, int64_t mb) {
    if (run_.tied) write_gradient({step, group, mb, 0, 0, 0}, store_.accumulate());
    for (int u = last_unit(); u >= 0; --u) {
      if (u > 0) use(u, u - 1);
      if (group < 0) store_.join_reductions(u);
      for (size_t p = units_[static_cast<size_t>(u)].params.size(); p-- > 0;) {
        const int param_index = static_cast<int>(p);
        const bool again = written_twice(run_, u, param_index);
        write_gradient({step, group, mb, u, param_index, 1}, store_.accumulate() || again);
      }
      if (u > 1) store_.prefetch(u - 2);
      store_.reduce(u);
    }
  }

  void write_gradient(const Source& source, bool accumulate) {
    if (source.group < 0) return;
    if (!units_[static_cast<size_t>(source.unit)].params[static_cast<size_t>(source.param)].by_rows) {
      return write(store_.gradient(source.unit, source.param), 0, source, accumulate);
    }
    for (ParamStore::RowBlocks blocks = store_.row_blocks(source.unit, source.param); blocks.next();) {
      write(blocks.gradient(), blocks.first_row() * blocks.gradient().dim(1), source, accumulate);
    }
  }

  /// Writes a gradient from element `first` on.
  void write(const Tensor& gradient, int64_t first, const Source& source, bool accumulate) {
    Values values = gradient_values(run_, source, first + gradient.numel());
    values.erase(values.begin(), values.begin() + first);
    if (accumulate) {
      Values before(values.size());
      copy_to_host(before.data(), gradient.data, gradient.bytes(), stream());
      stream().synchronize();
      add(before, values, false);
      values.swap(before);
    }
    copy_to_device(gradient.data, values.data(), gradient.bytes(), stream());
    stream().synchronize();
  }

  static Values read(const Tensor& t) {
    Values values(static_cast<size_t>(t.numel()));
    copy_to_host(values.data(), t.data, t.bytes(), stream());
    stream().synchronize();
    return values;
  }
  static void write(const Tensor& t, const void* data) {
    copy_to_device(t.data, data, t.bytes(), stream());
    stream().synchronize();
  }

  void update_shards() {
    store_.update([this](int u, const ParamStore::Shard& shard) {
      EXPECT_EQ(shard.gradient.numel(), shard.end - shard.begin);
      const auto& [master_data, m_data, v_data] = std::tie(shard.states[0], shard.states[1], shard.states[2]);
      Values master = read(master_data), m = read(m_data), v = read(v_data), g = read(shard.gradient);
      count_dirty_padding(u, shard.begin, g);
      std::vector<bf16> rounded(master.size());
      for (size_t i = 0; i < master.size(); ++i) {
        update(master[i], m[i], v[i], g[i]);
        rounded[i] = bf16(master[i]);
      }
      write(master_data, master.data());
      write(m_data, m.data());
      write(v_data, v.data());
      if (!shard.weights.empty()) write(shard.weights, rounded.data());
    });
  }

  void count_dirty_padding(int unit, int64_t begin, const Values& g) {
    const UnitSpec& spec = units_[static_cast<size_t>(unit)];
    std::vector<uint8_t> used(static_cast<size_t>(store_.units()[unit].layout.elements()));
    for (size_t p = 0; p < spec.params.size(); ++p) {
      const int64_t offset = store_.units()[unit].layout.offset(static_cast<int>(p));
      for (int64_t i = 0; i < spec.params[p].numel(); ++i) used[static_cast<size_t>(offset + i)] = 1;
    }
    for (size_t i = 0; i < g.size(); ++i) {
      if (used[static_cast<size_t>(begin) + i] == 0 && g[i] != 0) ++result_.dirty_padding;
    }
  }

  void read_parameters() {
    result_.parameters = initial_parameters(units_);
    for (int u = 0; u < store_.units().size(); ++u) {
      for (size_t p = 0; p < units_[static_cast<size_t>(u)].params.size(); ++p) {
        test::gather_parameter(store_, u, static_cast<int>(p), result_.parameters[static_cast<size_t>(u)][p].data());
      }
    }
  }

  ToyRun run_;
  DType compute_;
  std::vector<UnitSpec> units_;
  Arena arena_;
  std::optional<PlannedMemory> memory_;
  ParamStore store_;
  bool unread_;
  Parameters expected_;
  ToyResult result_;
};

}  // namespace llmtrain::test
