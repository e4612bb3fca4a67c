// Ranks together: every ZeRO stage and number of shards into every other, and failures of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "checkpoint/toy_state.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::same_bits;
using test::stream;
using test::toy_value;
using testing::HasSubstr;

/// Fills a store with the state of a step, the elements after the tensors included.
class ToyStore {
 public:
  ToyStore(int stage, DType compute, int64_t segment_elements = default_segment_elements)
      : store(test::toy_specs(), options(stage, compute, segment_elements)) {
    store.plan(arena_);
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    store.start(communicator(), stream());
  }
  void set(int64_t step) {
    StoreState state(store, stream());
    each([&](int64_t unit, size_t plane, ShardBorders range) {
      std::vector<float> values;
      for (int64_t e = range.begin; e < range.end; ++e) values.push_back(toy_value(step, plane, unit, e));
      state.write(unit, plane, range.begin, range.end - range.begin, values.data());
    });
    state.finish();
  }
  /// Counts elements that differ from the step's, over all ranks.
  int64_t wrong(int64_t step) {
    int64_t count[] = {0};
    const StoreState state(store, stream());
    each([&](int64_t unit, size_t plane, ShardBorders range) {
      std::vector<float> values(static_cast<size_t>(range.end - range.begin));
      state.read(unit, plane, range.begin, range.end - range.begin, values.data());
      for (int64_t e = range.begin; e < range.end; ++e) {
        if (!same_bits(values[static_cast<size_t>(e - range.begin)], toy_value(step, plane, unit, e))) ++count[0];
      }
    });
    communicator().sum(count);
    return count[0];
  }
  /// Counts weights that differ from the rounded master, over all ranks and units.
  int64_t wrong_weights(int64_t step) {
    int64_t count[] = {0};
    for (int u = 0; u < store.units().size(); ++u) {
      store.prefetch(u);
      store.acquire(u);
      for (size_t p = 0; p < store.units()[u].spec.params.size(); ++p) {
        const Tensor weight = store.weight(u, static_cast<int>(p));
        const int64_t offset = store.units()[u].layout.offset(static_cast<int>(p));
        std::vector<std::byte> bytes(static_cast<size_t>(weight.bytes()));
        copy_to_host(bytes.data(), weight.data, weight.bytes(), stream());
        stream().synchronize();
        const Tensor copy(bytes.data(), weight.dtype, {weight.numel()});
        for (int64_t e = 0; e < weight.numel(); ++e) {
          const float master = toy_value(step, master_plane, u, offset + e);
          const bool right = copy.dtype == DType::f32
                                 ? same_bits(copy.as<float>()[e], master)
                                 : same_bits(static_cast<float>(copy.as<bf16>()[e]), static_cast<float>(bf16(master)));
          if (!right) ++count[0];
        }
      }
      store.release(u);
    }
    communicator().sum(count);
    return count[0];
  }

 private:
  static ParamStoreOptions options(int stage, DType compute, int64_t segment_elements) {
    return {.compute = compute,
            .zero_stage = stage,
            .rank = communicator().rank(),
            .size = communicator().size(),
            .segment_elements = segment_elements};
  }
  template <class Visit>
  void each(const Visit& visit) {
    for (int u = 0; u < store.units().size(); ++u) {
      for (size_t segment = 0; segment < store.units()[u].segments.size(); ++segment) {
        const ParamStore::Shard shard = store.shard(u, segment);
        for (size_t plane = 0; plane < store.units().options().states.size(); ++plane) {
          visit(u, plane, ShardBorders{shard.begin, shard.end});
        }
      }
    }
  }
  Arena arena_;
  DeviceBuffer memory_;

 public:
  ParamStore store;
};

class Checkpoint : public testing::Test {
 protected:
  test::ToyFolder folder_{"llmtrain_checkpoint_mpi_test"};
  Schema schema_ = make_schema(test::toy_specs());
  std::vector<float> buffer_ = std::vector<float>(700);
  std::vector<int64_t> file_of_rank_;

  void save(ToyStore& store, int64_t step, const SaveHook& hook = nullptr) {
    const StoreState state(store.store, stream());
    SaveRequest request = test::toy_request(step);
    request.file_of_rank = file_of_rank_;
    save_checkpoint(folder_.path(), state, request, buffer_, communicator(), hook);
  }
  int64_t load(ToyStore& store) {
    const auto found = find_checkpoint(folder_.path(), communicator());
    if (!found) return -1;
    StoreState state(store.store, stream());
    load_checkpoint(found->path, found->manifest, state, buffer_, communicator());
    return found->manifest.step;
  }
};

TEST_F(Checkpoint, EveryStageIntoEveryOther) {
  int64_t step = 0;
  for (int from = 0; from <= 3; ++from) {
    ToyStore saved(from, DType::bf16);
    saved.set(++step);
    save(saved, step);
    for (int to = 0; to <= 3; ++to) {
      for (const DType compute : {DType::f32, DType::bf16}) {
        ToyStore loaded(to, compute);
        EXPECT_EQ(load(loaded), step);
        EXPECT_EQ(loaded.wrong(step), 0) << from << " to " << to;
        EXPECT_GT(loaded.wrong(step + 1), 1000);  // control
        EXPECT_EQ(loaded.wrong_weights(step), 0) << from << " to " << to;
        EXPECT_GT(loaded.wrong_weights(step + 1), 1000);
      }
    }
  }
}

TEST_F(Checkpoint, AnyNumberOfShardsIsReadByAnyNumberOfRanks) {
  for (const int64_t shards : {1, 2, 3, 4, 6, 13}) {
    if (communicator().rank() == 0) test::write_layout(folder_.path(), schema_, shards, shards);
    communicator().barrier();
    ToyStore loaded(2, DType::f32);
    EXPECT_EQ(load(loaded), shards);
    EXPECT_EQ(loaded.wrong(shards), 0);
    EXPECT_GT(loaded.wrong(shards + 1), 1000);
  }
  ToyStore saved(1, DType::f32);
  saved.set(99);
  save(saved, 99);
  const Manifest manifest = read_manifest(folder_ / checkpoint_name(99));
  EXPECT_EQ(manifest.shards.size(), static_cast<size_t>(communicator().size()));
  for (const int64_t ranks : {1, 2, 3, 6, 50}) {
    for (int64_t r = 0; r < ranks; ++r) {
      test::ToyTarget target(schema_, 99, r, ranks);
      load_checkpoint(folder_ / checkpoint_name(99), manifest, target, buffer_, communicator());
      EXPECT_EQ(target.right, target.wanted_elements());
      EXPECT_EQ(target.wrong, 0);
      EXPECT_TRUE(target.finished);
    }
  }
}

// Checkpoints of older versions have no segments; a later version may have others.
TEST_F(Checkpoint, UnitsInSegmentsOfOneSizeAreReadIntoThoseOfAnother) {
  int64_t step = 0;
  for (const auto& [from, to] : {std::pair<int64_t, int64_t>(256, 512), {512, 256}, {default_segment_elements, 256}}) {
    ToyStore saved(1, DType::f32, from);
    saved.set(++step);
    save(saved, step);
    const std::string path = folder_ / checkpoint_name(step);
    const Manifest manifest = verify_checkpoint(path, communicator());
    EXPECT_EQ(manifest.schema.units[1].segment_ends.empty(), from == default_segment_elements);
    for (const int stage : {0, 2, 3}) {
      ToyStore loaded(stage, DType::bf16, to);
      EXPECT_EQ(load(loaded), step);
      EXPECT_EQ(loaded.wrong(step), 0) << from << " to " << to;
      EXPECT_GT(loaded.wrong(step + 1), 1000);  // control
      EXPECT_EQ(loaded.wrong_weights(step), 0);
    }
    for (const int64_t ranks : {1, 3, 7}) {
      const Schema schema = make_schema(test::toy_specs(), master_and_moments(), to);
      for (int64_t r = 0; r < ranks; ++r) {
        test::ToyTarget target(schema, step, r, ranks);
        load_checkpoint(path, manifest, target, buffer_, communicator());
        EXPECT_EQ(target.right, target.wanted_elements());
        EXPECT_EQ(target.wrong, 0);
      }
    }
  }
}

/// Ranks of a node share a file, wherever the launcher places them.
TEST_F(Checkpoint, RanksThatShareFilesSaveTheSame) {
  const int64_t size = communicator().size();
  ToyStore saved(2, DType::f32);
  int64_t step = 0;
  for (const int64_t files : {int64_t{1}, std::min<int64_t>(2, size), size}) {
    file_of_rank_.clear();
    for (int64_t r = 0; r < size; ++r) file_of_rank_.push_back(r % files);
    saved.set(++step);
    save(saved, step);
    const std::string path = folder_ / checkpoint_name(step);
    const Manifest manifest = verify_checkpoint(path, communicator());
    EXPECT_EQ(manifest.shards.size(), static_cast<size_t>(size));
    EXPECT_EQ(count_files(manifest.shards), files);
    EXPECT_EQ(manifest.all_files().size(), static_cast<size_t>(files) + 1);
    EXPECT_EQ(load(saved), step);
    for (const int64_t ranks : {1, 3}) {
      for (int64_t r = 0; r < ranks; ++r) {
        test::ToyTarget target(schema_, step, r, ranks);
        load_checkpoint(path, manifest, target, buffer_, communicator());
        EXPECT_EQ(target.right, target.wanted_elements());
        EXPECT_EQ(target.wrong, 0);
      }
    }
    ToyStore loaded(3, DType::bf16);
    EXPECT_EQ(load(loaded), step);
    EXPECT_EQ(loaded.wrong(step), 0);
    EXPECT_GT(loaded.wrong(step + 1), 1000);
    // Messages name the damaged files, whatever rank owns them.
    communicator().barrier();
    if (communicator().rank() == 0) {
      const ShardIndex index =
          read_shard_index(FileHandle::open_to_read(path + "/" + manifest.shards.back().file.name), manifest, size - 1);
      std::string bytes = test::bytes_of(path + "/" + manifest.shards.back().file.name);
      bytes[static_cast<size_t>(index.entries.back().offset)] ^= 2;
      test::put_bytes(path + "/" + manifest.shards.back().file.name, bytes);
    }
    communicator().barrier();
    try {
      verify_checkpoint(path, communicator());
      ADD_FAILURE() << "damage was not seen";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("v of tensor ln_f.weight"));
    }
  }
}

TEST_F(Checkpoint, AFailureOfAnyRankEndsTheSaveOnAllAndLeavesNothing) {
  ToyStore store(1, DType::f32);
  store.set(1);
  save(store, 1);
  store.set(2);
  const std::string own = shard_name(communicator().size() - 1, communicator().size());
  for (const std::string& operation :
       {std::string("create shard"), std::string("reserve"), "write " + own, "sync " + own, "read back " + own,
        std::string("sync manifest"), std::string("rename attempt")}) {
    try {
      save(store, 2, [&](const std::string& now) {
        if (now == operation && (communicator().rank() == communicator().size() - 1 || !now.ends_with(".h5"))) {
          throw UserError(ExitCode::io, "no luck with " + now);
        }
      });
      ADD_FAILURE() << operation << " did not fail";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      EXPECT_STREQ(error.what(), ("no luck with " + operation).c_str());
    }
    communicator().barrier();
    EXPECT_EQ(folder_.leftovers(), 0) << operation;
    EXPECT_EQ(published_steps(folder_.path()), std::vector<int64_t>{1});
    communicator().barrier();
  }
  ToyStore loaded(3, DType::f32);
  EXPECT_EQ(load(loaded), 1);
  EXPECT_EQ(loaded.wrong(1), 0);
  save(store, 2);
  EXPECT_EQ(load(loaded), 2);
  EXPECT_EQ(loaded.wrong(2), 0);
}

TEST_F(Checkpoint, AllRanksFallBackToTheSameOlderOne) {
  ToyStore store(1, DType::f32);
  for (const int64_t step : {1, 2, 3}) {
    store.set(step);
    save(store, step);
  }
  if (communicator().rank() == 0) {
    const std::string last = shard_name(communicator().size() - 1, communicator().size());
    const std::string path = folder_ / (checkpoint_name(3) + "/" + last);
    std::string bytes = test::bytes_of(path);
    bytes[bytes.size() / 2] ^= 16;
    test::put_bytes(path, bytes);
    std::filesystem::remove(folder_ / (checkpoint_name(2) + "/" + view_name));
  }
  communicator().barrier();
  const auto found = find_checkpoint(folder_.path(), communicator());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->manifest.step, 1);
  ASSERT_EQ(found->refused.size(), 2u);
  EXPECT_THAT(found->refused[0].reason, HasSubstr("instead of"));
  EXPECT_THAT(found->refused[1].reason, HasSubstr(view_name));
  ToyStore loaded(0, DType::bf16);
  EXPECT_EQ(load(loaded), 1);
  EXPECT_EQ(loaded.wrong(1), 0);
}

}  // namespace
}  // namespace llmtrain
