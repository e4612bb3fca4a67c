// A damaged checkpoint is never used; the next older one is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "checkpoint/toy_state.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::put_bytes;
using testing::AllOf;
using testing::HasSubstr;

class Damage : public testing::Test {
 protected:
  Damage() {
    test::write_layout(folder_.path(), schema_, 10, 3);
    newest_ = test::write_layout(folder_.path(), schema_, 20, 3);
  }

  std::string file(const std::string& name) const { return newest_ + "/" + name; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(newest_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Checks that step 10 is found and intact; returns the reason why 20 was refused.
  std::string fallback() const {
    const auto found = find_checkpoint(folder_.path(), test::communicator());
    if (!found || found->manifest.step != 10 || found->refused.size() != 1) return "";
    test::ToyTarget target(schema_, 10, 0, 1);
    std::vector<float> buffer(333);
    load_checkpoint(found->path, found->manifest, target, buffer, test::communicator());
    EXPECT_EQ(target.right, target.wanted_elements());
    EXPECT_EQ(target.wrong, 0);
    return found->refused[0].reason;
  }

  test::ToyFolder folder_{"llmtrain_damage_test"};
  Schema schema_ = make_schema(test::toy_specs());
  std::string newest_;
};

TEST_F(Damage, ControlWithoutAny) {
  EXPECT_THAT(files(), testing::ElementsAre("manifest.json", "shard-00000-of-00003.h5", "shard-00001-of-00003.h5",
                                            "shard-00002-of-00003.h5", "view.h5"));
  const auto found = find_checkpoint(folder_.path(), test::communicator());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->manifest.step, 20);
  EXPECT_TRUE(found->refused.empty());
  EXPECT_EQ(found->manifest.run, test::toy_request(20).run);
}

TEST_F(Damage, EveryFlippedBit) {
  std::mt19937_64 random(1);
  for (const std::string& name : files()) {
    const std::string whole = bytes_of(file(name));
    for (int n = 0; n < 120; ++n) {
      std::string hurt = whole;
      const size_t at = random() % hurt.size();
      hurt[at] = static_cast<char>(hurt[at] ^ (1 << (random() % 8)));
      put_bytes(file(name), hurt);
      const bool manifest = name == manifest_name;  // its frame and its text can be damaged
      ASSERT_THAT(fallback(), AllOf(HasSubstr(name), HasSubstr(manifest ? "manifest" : "instead of"))) << "byte " << at;
    }
    put_bytes(file(name), whole);
  }
  EXPECT_EQ(fallback(), "") << "whole again, so that step 20 is taken";
}

TEST_F(Damage, TheTensorAndItsHashesAreNamed) {
  const Manifest manifest = read_manifest(newest_);
  const std::string name = manifest.shards[1].file.name;
  std::string hurt = bytes_of(file(name));
  const ShardIndex index = read_shard_index(FolderHandle::open(newest_).open_to_read(name), manifest, 1);
  for (const IndexEntry& entry : index.entries) {
    hurt[static_cast<size_t>(entry.offset)] ^= 1;
    put_bytes(file(name), hurt);
    hurt[static_cast<size_t>(entry.offset)] ^= 1;
    const std::string& tensor = manifest.schema.tensors[static_cast<size_t>(entry.range.tensor)].name;
    EXPECT_THAT(fallback(),
                AllOf(HasSubstr(name), HasSubstr(tensor), HasSubstr(manifest.schema.states[entry.range.plane].name),
                      HasSubstr("instead of " + hex(entry.hash)),
                      HasSubstr("instead of " + hex(manifest.shards[1].file.hash))));
  }
}

TEST_F(Damage, CutAppendedDeletedLinkedAndEmpty) {
  for (const std::string& name : files()) {
    const std::string whole = bytes_of(file(name));
    for (const size_t left : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
      put_bytes(file(name), whole.substr(0, left));
      EXPECT_THAT(fallback(), HasSubstr(name)) << left;
    }
    put_bytes(file(name), whole + '\0');
    EXPECT_THAT(fallback(), HasSubstr(name));
    fs::remove(file(name));
    EXPECT_THAT(fallback(), HasSubstr(name));
    put_bytes(folder_ / "elsewhere", whole);
    fs::create_symlink(folder_ / "elsewhere", file(name));
    EXPECT_THAT(fallback(), HasSubstr("link"));
    fs::remove(file(name));
    fs::create_directory(file(name));
    EXPECT_THAT(fallback(), HasSubstr(name));
    fs::remove(file(name));
    put_bytes(file(name), whole);
  }
  EXPECT_EQ(fallback(), "");
}

TEST_F(Damage, ShardsSwappedAndOfAnotherStep) {
  const std::string first = "shard-00000-of-00003.h5", second = "shard-00001-of-00003.h5";
  const std::string a = bytes_of(file(first)), b = bytes_of(file(second));
  put_bytes(file(first), b);
  put_bytes(file(second), a);
  EXPECT_THAT(fallback(), HasSubstr(first));
  put_bytes(file(second), b);
  put_bytes(file(first), bytes_of(folder_ / (checkpoint_name(10) + "/" + first)));
  EXPECT_THAT(fallback(), HasSubstr(first));
  put_bytes(file(first), a);
  EXPECT_EQ(fallback(), "");
}

TEST_F(Damage, AFolderUnderTheNameOfAnotherStep) {
  fs::rename(newest_, folder_ / checkpoint_name(30));
  EXPECT_THAT(fallback(), HasSubstr("its manifest is of step 20"));
  EXPECT_THROW(verify_checkpoint(folder_ / checkpoint_name(30), test::communicator()), UserError);
  EXPECT_THROW(read_manifest(folder_ / checkpoint_name(30)), UserError);
  fs::rename(folder_ / checkpoint_name(30), folder_ / "a copy");
  EXPECT_EQ(verify_checkpoint(folder_ / "a copy", test::communicator()).step, 20);
}

TEST_F(Damage, AllDamagedIsAnErrorAndDeletesNothing) {
  for (const int64_t step : {10, 20}) fs::remove(folder_ / (checkpoint_name(step) + "/" + manifest_name));
  try {
    find_checkpoint(folder_.path(), test::communicator());
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(checkpoint_name(10)), HasSubstr(checkpoint_name(20))));
  }
  EXPECT_EQ(published_steps(folder_.path()).size(), 2u);
  EXPECT_EQ(files().size(), 4u);
}

TEST_F(Damage, NoCheckpointsIsNoError) { EXPECT_FALSE(find_checkpoint(folder_ / "none", test::communicator())); }

TEST_F(Damage, AnotherModelIsRefusedBeforeAnyValueIsUsed) {
  test::ToyTarget target(make_schema(test::toy_specs(99)), 20, 0, 1);
  std::vector<float> buffer(100);
  EXPECT_THROW(load_checkpoint(newest_, read_manifest(newest_), target, buffer, test::communicator()), UserError);
  EXPECT_EQ(target.right + target.wrong, 0);
}

}  // namespace
}  // namespace llmtrain
