// An optimizer whose state is nothing like AdamW's needs no code in the store, offload, checkpoints or the estimate: it
// declares its planes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/toy_state.hpp"
#include "core/files/hdf5_handle.hpp"
#include "harness/whole_parameters.hpp"
#include "kernels/elementwise.hpp"
#include "optim/optimizer.hpp"
#include "parallel/local_communicator.hpp"
#include "parallel/toy_model.hpp"
#include "params/planned_memory.hpp"
#include "train/saver.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::initial_parameters;
using test::stream;
using test::ToyRun;
using testing::HasSubstr;

/// The state of one chunk: a momentum of 8 bits with a scale, and one second moment for all of its elements.
struct Chunk {
  float* master;
  uint8_t* m;
  float* m_scale;
  float* v;
};

/// Not inlined, so that the reference rounds alike.
[[gnu::noinline]] void update_chunk(const Chunk& c, const float* gradient) {
  float squares = 0, largest = 0;
  std::array<float, chunk_elements> m{};
  for (size_t i = 0; i < m.size(); ++i) squares += gradient[i] * gradient[i];
  *c.v = 0.5F * *c.v + squares / static_cast<float>(chunk_elements);
  for (size_t i = 0; i < m.size(); ++i) {
    m[i] = 0.75F * (static_cast<float>(static_cast<int8_t>(c.m[i])) * *c.m_scale) + gradient[i];
    c.master[i] -= 0.125F * m[i] / (1.0F + std::sqrt(*c.v));
    largest = std::max(largest, std::fabs(m[i]));
  }
  *c.m_scale = largest / 127;
  for (size_t i = 0; i < m.size(); ++i) {
    const float code = largest > 0 ? std::nearbyint(m[i] / *c.m_scale) : 0;
    c.m[i] = static_cast<uint8_t>(static_cast<int8_t>(code));
  }
}

const StatePlanes own_states = {{"master"}, {"m", DType::u8}, {"m.scale", DType::f32, 1}, {"v", DType::f32, 1}};

class OwnOptimizer : public Optimizer {
 public:
  StatePlanes states() const override { return own_states; }
  void update(ParamStore& params, const UpdateArgs& /*args*/, Stream& stream) override {
    params.update([&](int /*unit*/, const ParamStore::Shard& shard) {
      for (int64_t at = shard.begin; at < shard.end; at += chunk_elements) {
        const ParamStore::Shard part = shard.part(at, at + chunk_elements);
        const auto& [master, m, m_scale, v] = std::tie(part.states[0], part.states[1], part.states[2], part.states[3]);
        update_chunk({master.as<float>(), m.as<uint8_t>(), m_scale.as<float>(), v.as<float>()},
                     part.gradient.as<float>());
        if (!part.weights.empty()) cast(part.weights, master, stream);
      }
    });
  }
};

/// Position-dependent hash of a chunk of a plane.
uint64_t hash_of(int64_t unit, size_t plane, int64_t chunk, const void* data, int64_t bytes) {
  const int64_t place[] = {unit, static_cast<int64_t>(plane), chunk};
  StreamHash hash;
  hash.update(place, sizeof(place));
  hash.update(data, static_cast<size_t>(bytes));
  return hash.digest().low;
}

const ToyRun toy{.tied = false, .groups = 3, .steps = 4};

/// The same training on plain vectors; returns the hash of the state.
uint64_t reference(int64_t steps) {
  const std::vector<UnitSpec> units = test::toy_units(toy.tied);
  const test::Parameters initial = initial_parameters(units);
  uint64_t all = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitLayout layout(units[u]);
    const auto elements = static_cast<size_t>(layout.elements()), chunks = elements / size_t{chunk_elements};
    std::vector<float> master(elements), m_scale(chunks), v(chunks), gradient(elements);
    std::vector<uint8_t> m(elements);
    for (size_t p = 0; p < initial[u].size(); ++p) {
      std::ranges::copy(initial[u][p], master.begin() + layout.offset(static_cast<int>(p)));
    }
    for (int64_t step = 0; step < steps; ++step) {
      for (size_t p = 0; p < initial[u].size(); ++p) {
        const auto count = static_cast<int64_t>(initial[u][p].size());
        std::ranges::copy(test::step_gradient(toy, step, static_cast<int>(u), static_cast<int>(p), count),
                          gradient.begin() + layout.offset(static_cast<int>(p)));
      }
      for (size_t c = 0; c < chunks; ++c) {
        const size_t at = c * size_t{chunk_elements};
        update_chunk({&master[at], &m[at], &m_scale[c], &v[c]}, &gradient[at]);
      }
    }
    for (size_t c = 0; c < chunks; ++c) {
      const size_t at = c * size_t{chunk_elements};
      const void* planes[] = {&master[at], &m[at], &m_scale[c], &v[c]};
      for (size_t p = 0; p < own_states.size(); ++p) {
        const auto unit = static_cast<int64_t>(u), chunk = static_cast<int64_t>(c);
        all += hash_of(unit, p, chunk, planes[p], own_states[p].bytes(chunk_elements));
      }
    }
  }
  return all;
}

using Setting = test::StoreLayout;

class Job {
 public:
  Job(Communicator& ranks, const Setting& setting)
      : ranks_(ranks),
        store_(test::toy_units(toy.tied), test::store_options(ranks, setting, toy.groups, optimizer_.states())) {
    store_.plan(arena_);
    memory_.emplace(arena_, ranks);
    store_.start(ranks, stream());
    const test::Parameters initial = initial_parameters(test::toy_units(toy.tied));
    for (size_t u = 0; u < initial.size(); ++u) {
      for (size_t p = 0; p < initial[u].size(); ++p) {
        test::set_parameter(store_, static_cast<int>(u), static_cast<int>(p), initial[u][p].data());
      }
    }
    store_.publish_weights();
  }

  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      store_.reducer().begin_step(test::groups_of(toy, step));
      for (int64_t round = 0; round < store_.reducer().rounds(); ++round) {
        const int64_t group = store_.reducer().begin_round(round);
        for (int unit = store_.units().size() - 1; unit >= 0; --unit) {
          for (size_t p = 0; group >= 0 && p < store_.units()[unit].spec.params.size(); ++p) {
            write_gradient({step, group, 0, unit, static_cast<int>(p), 1});
          }
          store_.reduce(unit);
        }
      }
      store_.reducer().finish();
      optimizer_.update(store_, {}, stream());
    }
  }

  void write_gradient(const test::Source& source) {
    const auto write = [&](const Tensor& to, int64_t first) {
      const auto values = test::gradient_values(toy, source, first + to.numel());
      copy_to_device(to.data, values.data() + first, to.bytes(), stream());
      stream().synchronize();
    };
    if (!store_.units()[source.unit].spec.params[static_cast<size_t>(source.param)].by_rows) {
      return write(store_.gradient(source.unit, source.param), 0);
    }
    for (ParamStore::RowBlocks blocks = store_.row_blocks(source.unit, source.param); blocks.next();) {
      write(blocks.gradient(), blocks.first_row() * blocks.gradient().dim(1));
    }
  }

  /// Over all ranks.
  uint64_t hash() {
    std::vector<uint64_t> sum{0};
    store_.finish_update();
    for (int unit = 0; unit < store_.units().size(); ++unit) {
      for (size_t segment = 0; segment < store_.units()[unit].segments.size(); ++segment) {
        const UnitRange own = store_.units().owned(unit, segment);
        for (size_t plane = 0; plane < own_states.size(); ++plane) {
          std::vector<char> bytes(static_cast<size_t>(own_states[plane].bytes(chunk_elements)));
          for (int64_t at = own.begin; at < own.end; at += chunk_elements) {
            store_.read_state(unit, plane, at, chunk_elements, bytes.data(), stream());
            sum[0] += hash_of(unit, plane, at / chunk_elements, bytes.data(), std::ssize(bytes));
          }
        }
      }
    }
    ranks_.sum(sum);
    return sum[0];
  }

  void save(const std::string& folder, int64_t step) {
    std::vector<uint8_t> copy(static_cast<size_t>(Snapshot::bytes(store_)) / 3);  // the rest is read live
    Snapshot snapshot(store_, stream(), copy);
    snapshot.take();
    save_checkpoint(folder, snapshot, test::toy_request(step), buffer_, ranks_);
  }
  /// This rank's values of a plane.
  std::vector<float> owned_values(int unit, size_t plane) {
    const UnitRange own = store_.units().owned(unit, 0);
    const auto bytes = static_cast<size_t>(own_states[plane].bytes(own.end - own.begin));
    std::vector<float> values(own_states[plane].dtype == DType::u8 ? 0 : bytes / sizeof(float));
    std::vector<uint8_t> codes(values.empty() ? bytes : 0);
    void* to = codes.empty() ? static_cast<void*>(values.data()) : codes.data();
    store_.read_state(unit, plane, own.begin, own.end - own.begin, to, stream());
    return codes.empty() ? values : std::vector<float>(codes.begin(), codes.end());
  }
  int64_t first_value(int unit, size_t plane) { return own_states[plane].values(store_.units().owned(unit, 0).begin); }

  void load(const std::string& folder) {
    const auto found = find_checkpoint(folder, ranks_);
    StoreState state(store_, stream());
    load_checkpoint(found->path, found->manifest, state, buffer_, ranks_);
  }

 private:
  Communicator& ranks_;
  OwnOptimizer optimizer_;
  Arena arena_;
  std::optional<PlannedMemory> memory_;
  ParamStore store_;
  std::vector<float> buffer_ = std::vector<float>(700);
};

const std::vector<Setting> settings = {
    {0, DType::f32},
    {1, DType::bf16},
    {2, DType::f32},
    {3, DType::bf16},
    {1, DType::f32, Offload::none, Offload::none, 512},
    {3, DType::bf16, Offload::nvme, Offload::nvme, 2000},
    {0, DType::bf16, Offload::nvme},
    {2, DType::bf16, Offload::nvme},
    {3, DType::f32, Offload::nvme, Offload::nvme},
    {3, DType::bf16, Offload::none, Offload::nvme},
};

class OwnStates : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_memory_is_host()) GTEST_SKIP() << "the optimizer of this test works in host memory";
  }
};

TEST_F(OwnStates, TrainAlikeAtEveryStageWithAndWithoutOffload) {
  for (const Setting& s : settings) {
    Job job(communicator(), s);
    job.train(0, toy.steps);
    EXPECT_EQ(job.hash(), reference(toy.steps)) << s.stage << ' ' << name_of(s.compute);
    EXPECT_NE(job.hash(), reference(toy.steps - 1)) << "control";
  }
}

TEST_F(OwnStates, AreSavedAndResumedOnAnotherNumberOfRanks) {
  const test::ToyFolder folder("llmtrain_states_test");
  const auto local = make_local_communicator();
  const bool root = communicator().rank() == 0;
  for (size_t i = 0; i < settings.size(); ++i) {
    const std::string here = folder / std::to_string(i);
    const Setting& other = settings[(i + 3) % settings.size()];
    {
      Job job(communicator(), settings[i]);
      job.train(0, 1);
      job.save(here, 1);
    }
    if (root) {  // alone
      Job job(*local, other);
      job.load(here);
      EXPECT_EQ(job.hash(), reference(1));
      job.train(1, 2);
      job.save(here, 2);
    }
    communicator().barrier();
    Job job(communicator(), other);
    job.load(here);
    job.train(2, toy.steps);
    EXPECT_EQ(job.hash(), reference(toy.steps)) << i;
  }
}

TEST_F(OwnStates, AreNotThoseOfAnotherOptimizer) {
  const test::ToyFolder folder("llmtrain_other_states_test");
  Job job(communicator(), {1});
  job.save(folder.path(), 1);
  const Manifest manifest = read_manifest(folder / checkpoint_name(1));
  EXPECT_EQ(manifest.schema.states, own_states);
  ParamStore adamw(test::toy_units(toy.tied), {.rank = communicator().rank(), .size = communicator().size()});
  StoreState target(adamw, stream());
  std::vector<float> buffer(700);
  try {
    load_checkpoint(folder / checkpoint_name(1), manifest, target, buffer, communicator());
    FAIL() << "states of another optimizer were loaded";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    EXPECT_THAT(
        error.what(),
        HasSubstr("it has the state 'master' (fp32), 'm' (uint8), 'm.scale' (fp32), 'v' (fp32) of another optimizer"));
  }
}

std::vector<float> read_dataset(const std::string& path, const std::string& name) {
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  const Hdf5Handle data(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  const Hdf5Handle space(H5Dget_space(data.get()), H5Sclose);
  std::vector<float> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  EXPECT_GE(H5Dread(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0) << name;
  return values;
}

TEST_F(OwnStates, AreShownByTheView) {
  const test::ToyFolder folder("llmtrain_states_view_test");
  Job job(communicator(), {1});
  job.train(0, 1);
  job.save(folder.path(), 1);
  const std::vector<UnitSpec> units = test::toy_units(toy.tied);
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (size_t plane = 0; plane < own_states.size(); ++plane) {
      const std::string name = "units/" + own_states[plane].name + "/" + units[static_cast<size_t>(unit)].name;
      const std::vector<float> whole = read_dataset(folder / (checkpoint_name(1) + "/" + view_name), name);
      const std::vector<float> mine = job.owned_values(unit, plane);
      const auto first = whole.begin() + job.first_value(unit, plane);
      EXPECT_TRUE(std::equal(mine.begin(), mine.end(), first)) << name;
      EXPECT_TRUE(mine.empty() || std::ranges::any_of(mine, [](float x) { return x != 0; })) << "control: " << name;
    }
  }
}

TEST_F(OwnStates, AreEstimatedByTheirPlanes) {
  const auto bytes = [](const StatePlanes& states, int64_t (*of)(const ParamStore&, const Arena&)) {
    ParamStore store({{"unit", {test::param("matrix", 256, 1024)}}}, {.compute = DType::bf16, .states = states});
    Arena arena;
    store.plan(arena);
    return of(store, arena);
  };
  const auto planned = [](const ParamStore&, const Arena& a) { return a.bytes(MemoryCategory::optimizer); };
  const auto saved = [](const ParamStore& s, const Arena&) { return s.units().state_bytes(); };
  constexpr int64_t n = 256 * 1024;
  for (const auto& of : {+planned, +saved}) {
    EXPECT_EQ(bytes(own_states, of), n * 4 + n + n / 256 * 8);
    EXPECT_EQ(bytes(master_and_moments(), of), 12 * n);
  }
}

}  // namespace
}  // namespace llmtrain
