// A policy with a critic: their weights come from two folders, checkpoints hold both, and those who want the policy
// alone get it, from the same checkpoint.

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/state.hpp"
#include "checkpoint/toy_state.hpp"
#include "core/critic_names.hpp"
#include "hf/files.hpp"
#include "hf/model_files.hpp"
#include "models/lora.hpp"
#include "roles/model_set.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::stream;

class PolicyWithCritic : public testing::Test {
 protected:
  PolicyWithCritic() : folder_(test::shared_path("roles"), communicator().rank() == 0) {
    critic_.head = ModelConfig::Head::score;
    if (communicator().rank() == 0) {
      test::write_model(folder_.at("policy"), policy_, {});
      test::write_model(folder_.at("critic"), critic_, {});
    }
    communicator().barrier();
  }
  ~PolicyWithCritic() override { communicator().barrier(); }

  /// A model with memory, whose weights are read.
  struct Loaded {
    explicit Loaded(RoleSpec spec) : role(std::move(spec)) {
      role.plan(arena);
      memory = DeviceBuffer(arena.bytes());
      arena.commit(memory.data());
      role.start({communicator(), {}}, stream());
      role.load(communicator(), stream());
    }
    RoleModel role;
    Arena arena;
    DeviceBuffer memory;
  };

  RoleSpec spec(int stage, const std::string& critic) const {
    RoleSpec spec;
    spec.shape = decoder_shape(policy_, policy_.vocab_size);
    spec.trains = true;
    spec.store = test::Started::options(DType::bf16, stage);
    spec.weights.folder = folder_.at("policy");
    spec.critic = CriticSpec{decoder_shape(critic_, critic_.vocab_size), critic};
    return spec;
  }

  /// Number of parameters that are not those of the files, of the policy and of the critic; adapters do not count.
  static std::pair<int, int> differences(RoleModel& role) {
    std::pair<int, int> count;
    ParamStore& store = role.params();
    for (int unit = 0; unit < store.units().size(); ++unit) {
      const bool of_critic = store.units()[unit].spec.name.starts_with(critic_prefix);
      UnitSpec stored = store.units()[unit].spec;
      if (of_critic) remove_prefix(stored, critic_prefix.size());
      for (size_t p = 0; p < stored.params.size(); ++p) {
        if (is_adapter_name(stored.params[p].slices.front().name)) continue;
        std::vector<float> values(static_cast<size_t>(stored.params[p].numel()));
        test::gather_parameter(store, unit, static_cast<int>(p), values.data());
        if (values != test::values_of(stored.params[p])) ++(of_critic ? count.second : count.first);
      }
    }
    return count;
  }

  ModelConfig policy_ = test::small_model("llama"), critic_ = test::small_model("gpt2");
  test::ScratchFolder folder_;
};

TEST_F(PolicyWithCritic, HasTheWeightsOfTwoFolders) {
  for (const int stage : {0, 1, 3}) {
    Loaded loaded(spec(stage, folder_.at("critic")));
    EXPECT_EQ(differences(loaded.role), std::pair(0, 0)) << "stage " << stage;
    EXPECT_EQ(loaded.role.whole_units().size(), loaded.role.actor().units().size());
    Loaded random(spec(stage, ""));
    EXPECT_EQ(differences(random.role).first, 0);
    EXPECT_GT(differences(random.role).second, 10) << "the control";
  }
}

TEST_F(PolicyWithCritic, IsSavedWithItAndReadWithoutIt) {
  std::vector<float> buffer(4096);
  Loaded saved(spec(1, folder_.at("critic")));
  StoreState state(saved.role.params(), stream());
  save_checkpoint(folder_.at("checkpoints"), state, test::toy_request(1), buffer, communicator());
  const std::string path = folder_.at("checkpoints") + "/" + checkpoint_name(1);

  Loaded resumed(spec(3, ""));
  EXPECT_GT(differences(resumed.role).second, 10) << "the control";
  StoreState target(resumed.role.params(), stream());
  load_checkpoint(path, verify_checkpoint(path, communicator()), target, buffer, communicator());
  EXPECT_EQ(differences(resumed.role), std::pair(0, 0));

  RoleSpec alone = spec(1, "");
  alone.trains = false;
  alone.critic.reset();
  alone.weights = {.checkpoint = path};
  Loaded policy(std::move(alone));
  EXPECT_EQ(policy.role.params().units().size(), std::ssize(resumed.role.whole_units()));
  EXPECT_EQ(differences(policy.role).first, 0);
}

TEST_F(PolicyWithCritic, HasAdaptersOfItsOwn) {
  for (const int stage : {1, 3}) {
    RoleSpec adapted = spec(stage, folder_.at("critic"));
    adapted.lora = LoraConfig{};
    adapt(adapted.shape, *adapted.lora);
    RoleSpec again = adapted;
    Loaded loaded(std::move(adapted));
    EXPECT_EQ(differences(loaded.role), std::pair(0, 0)) << "stage " << stage;
    loaded.role.write_adapters(folder_.at("adapters"), communicator());
    again.lora->path = folder_.at("adapters");
    again.weights.seed = 7;
    Loaded restored(std::move(again));
    EXPECT_EQ(differences(restored.role), std::pair(0, 0)) << "stage " << stage;
    EXPECT_TRUE(loaded.role.frozen_weights().has_value());
    EXPECT_EQ(loaded.role.frozen_weights()->hash, restored.role.frozen_weights()->hash);
  }
}

}  // namespace
}  // namespace llmtrain
