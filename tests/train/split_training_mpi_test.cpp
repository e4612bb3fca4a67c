// Training of split matrices on given gradients: every mesh of tensor ranks, stage of ZeRO and optimizer gives the same
// parameters, norms and hashes, and a checkpoint of one mesh goes on in any other.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/toy_state.hpp"
#include "core/philox.hpp"
#include "harness/gradient_norm.hpp"
#include "harness/split_model.hpp"
#include "optim/optimizer.hpp"
#include "parallel/local_communicator.hpp"
#include "parallel/mesh.hpp"
#include "params/planned_memory.hpp"
#include "train/parameter_checks.hpp"
#include "train/saver.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::SplitModel;
using test::stream;
using Name = OptimizerConfig::Name;
using Tensors = std::map<std::string, std::vector<float>>;

constexpr int64_t blocks = 4, groups = 3, steps = 3;

/// Gradient of an element of an external tensor, of which every group has a part that differs in size.
float gradient_of(int64_t step, int64_t group, const std::string& name, int64_t element) {
  const Philox4 r =
      philox4x32(hash_of_name(name), static_cast<uint64_t>(step * groups + group), static_cast<uint64_t>(element));
  return std::ldexp(static_cast<float>(static_cast<int32_t>(r.v[0])) / 2147483648.0f,
                    static_cast<int>(r.v[1] % 16) - 8);
}

struct Trained {
  Tensors tensors;
  std::vector<double> norms;
  uint64_t hash = 0;
  int64_t parameters = 0, state_bytes = 0;
  bool operator==(const Trained&) const = default;
};

class Job {
 public:
  Job(Communicator& ranks, int64_t tensor, const OptimizerConfig& config, const test::StoreLayout& layout)
      : mesh_(ranks, {tensor, 1}),
        optimizer_(make_optimizer(config)),
        options_(options(layout)),
        store_(SplitModel::units(options_.tensor_share()), options_) {
    store_.plan(arena_);
    optimizer_->plan(store_, arena_);
    memory_.emplace(arena_, mesh_.parameters());
    store_.start(mesh_.parameters(), stream(), &mesh_.job());
    store_.initialize(3);
  }

  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      store_.reducer().begin_step(groups);
      for (int64_t round = 0; round < store_.reducer().rounds(); ++round) {
        const int64_t group = store_.reducer().begin_round(round);
        for (int unit = store_.units().size() - 1; unit >= 0; --unit) {
          if (group >= 0) write_gradients(step, group, unit);
          store_.reduce(unit);
        }
      }
      store_.reducer().finish();
      result_.norms.push_back(test::gradient_norm(store_, mesh_.job()));
      const double scale = std::min(1.0, 100 / result_.norms.back());
      optimizer_->update(store_, {step + 1, 0.01, scale, {}, &store_.ranks()}, stream());
    }
  }

  /// Collective.
  Trained result() {
    EXPECT_TRUE(state_is_finite(store_, mesh_.job(), stream()));
    ParameterHash hash(store_, mesh_.job(), stream());
    result_.hash = hash.after(steps);
    result_.parameters = store_.units().trained_parameters();
    result_.state_bytes = store_.units().state_bytes();
    result_.tensors = test::external_tensors(store_, mesh_.job());
    return result_;
  }

  void save(const std::string& folder, int64_t step) {
    std::vector<uint8_t> copy(static_cast<size_t>(Snapshot::bytes(store_)) / 3);  // the rest is read live
    Snapshot snapshot(store_, stream(), copy);
    snapshot.take();
    SaveRequest request = test::toy_request(step);
    request.tensor_ranks = mesh_.shape().tensor;
    if (mesh_.job().size() == 4) request.file_of_rank = {0, 0, 1, 1};
    save_checkpoint(folder, snapshot, request, buffer_, mesh_.job());
  }
  void load(const std::string& folder) {
    const auto found = find_checkpoint(folder, mesh_.job());
    StoreState state(store_, stream());
    load_checkpoint(found->path, found->manifest, state, buffer_, mesh_.job());
  }

 private:
  ParamStoreOptions options(const test::StoreLayout& layout) const {
    ParamStoreOptions o = test::store_options(mesh_.parameters(), layout, groups, optimizer_->states());
    o.tensor_rank = static_cast<int>(mesh_.tensor_rank());
    o.tensor_size = static_cast<int>(mesh_.shape().tensor);
    o.tensor_blocks = blocks;
    o.model_units = SplitModel::units({blocks, 0, blocks});
    return o;
  }

  void write_gradients(int64_t step, int64_t group, int unit) {
    const UnitSpec& spec = store_.units()[unit].spec;
    for (size_t p = 0; p < spec.params.size(); ++p) {
      const ParamSpec& param = spec.params[p];
      std::vector<float> values(static_cast<size_t>(param.numel()));
      for (const ParamSlice& slice : param.slices) {
        float* to = values.data() + slice.first_row * param.columns;
        each_external_run(block_of(param, slice), param.columns, 0, slice.rows * param.columns,
                          [&](const ExternalRun& run) {
                            for (int64_t e = run.begin; e < run.end; ++e)
                              to[e] = gradient_of(step, group, slice.name, run.first + e - run.begin);
                          });
      }
      const Tensor gradient = store_.gradient(unit, static_cast<int>(p));
      copy_to_device(gradient.data, values.data(), gradient.bytes(), stream());
      stream().synchronize();
    }
  }

  Mesh mesh_;
  std::unique_ptr<Optimizer> optimizer_;
  ParamStoreOptions options_;
  Arena arena_;
  std::optional<PlannedMemory> memory_;
  ParamStore store_;
  std::vector<float> buffer_ = std::vector<float>(700);
  Trained result_;
};

OptimizerConfig optimizer(Name name) {
  OptimizerConfig config;
  config.name = name;
  return config;
}

/// This process alone with all blocks.
Trained alone(Name name) {
  const auto local = make_local_communicator();
  Job job(*local, 1, optimizer(name), {});
  job.train(0, steps);
  return job.result();
}

std::vector<int64_t> tensor_sizes() {
  std::vector<int64_t> sizes;
  for (const int64_t tensor : {1, 2, 4}) {
    if (communicator().size() % tensor == 0) sizes.push_back(tensor);
  }
  return sizes;
}

const std::vector<test::StoreLayout> layouts = {
    {0, DType::f32},
    {1, DType::bf16},
    {2, DType::f32, Offload::none, Offload::none, 1024},
    {3, DType::bf16},
    {3, DType::bf16, Offload::nvme, Offload::nvme, 2048},
};

TEST(SplitTraining, EveryMeshAndOptimizerHasTheSameBits) {
  for (const Name name : {Name::adamw, Name::adamw_8bit, Name::muon, Name::adafactor, Name::lion, Name::sgd}) {
    const Trained expected = alone(name);
    for (const int64_t tensor : tensor_sizes()) {
      for (const test::StoreLayout& layout : layouts) {
        Job job(communicator(), tensor, optimizer(name), layout);
        job.train(0, steps);
        EXPECT_TRUE(job.result() == expected)
            << static_cast<int>(name) << ", tensor " << tensor << ", stage " << layout.stage;
      }
    }
    EXPECT_FALSE(alone(name == Name::sgd ? Name::lion : Name::sgd) == expected) << "control";
  }
}

TEST(SplitTraining, ACheckpointGoesOnInAnyMesh) {
  const test::ToyFolder folder("llmtrain_split_training_test");
  int64_t number = 0;
  for (const Name name : {Name::adamw, Name::adamw_8bit, Name::adafactor}) {
    const Trained expected = alone(name);
    for (const int64_t from : tensor_sizes()) {
      for (const int64_t to : tensor_sizes()) {
        const std::string here = folder / std::to_string(number++);
        std::vector<double> norms;
        {
          Job job(communicator(), from, optimizer(name), layouts[static_cast<size_t>(number) % layouts.size()]);
          job.train(0, 1);
          norms = job.result().norms;
          job.save(here, 1);
        }
        Job job(communicator(), to, optimizer(name), layouts[static_cast<size_t>(number + 2) % layouts.size()]);
        job.load(here);
        job.train(1, steps);
        Trained found = job.result();
        found.norms.insert(found.norms.begin(), norms.begin(), norms.end());
        EXPECT_TRUE(found == expected) << "from tensor " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
