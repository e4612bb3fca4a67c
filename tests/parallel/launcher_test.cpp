#include "parallel/job/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Sets or (null) removes an environment variable during its lifetime.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Environment() { set(old_ ? old_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) const { value != nullptr ? setenv(name_, value, 1) : unsetenv(name_); }
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Launcher, CoresOfTheNodeAreDividedAmongItsRanks) {
  EXPECT_EQ(choose_threads({.node_cores = 16, .ranks_on_node = 2, .bound_cores = 16}).threads, 8);
  EXPECT_EQ(choose_threads({.node_cores = 16, .ranks_on_node = 3, .bound_cores = 16}).threads, 5);
  EXPECT_EQ(choose_threads({.node_cores = 2, .ranks_on_node = 4, .bound_cores = 2}).threads, 1);
  EXPECT_EQ(choose_threads({.node_cores = 0, .ranks_on_node = 0, .bound_cores = 0}).threads, 1);
  EXPECT_THAT(choose_threads({.node_cores = 16, .ranks_on_node = 2, .bound_cores = 16}).note, Not(HasSubstr("bound")));
}

TEST(Launcher, ARankThatLosesCoresNamesTheRemedy) {
  const ThreadChoice mpirun = choose_threads({.node_cores = 16, .ranks_on_node = 2, .bound_cores = 1});
  EXPECT_EQ(mpirun.threads, 1);
  EXPECT_THAT(mpirun.note, HasSubstr("mpirun --bind-to none"));
  const ThreadChoice slurm =
      choose_threads({.node_cores = 16, .ranks_on_node = 2, .bound_cores = 4, .slurm_step = true});
  EXPECT_EQ(slurm.threads, 4);
  EXPECT_THAT(slurm.note, HasSubstr("srun --cpus-per-task=8"));
}

TEST(Launcher, TheEnvironmentDecidesFirst) {
  EXPECT_EQ(choose_threads({.requested = 3, .cpus_per_task = 5, .node_cores = 16, .bound_cores = 16}).threads, 3);
  EXPECT_EQ(choose_threads({.cpus_per_task = 5, .node_cores = 16, .bound_cores = 16}).threads, 5);
  const ThreadChoice crowded = choose_threads({.requested = 3, .node_cores = 16, .bound_cores = 1});
  EXPECT_EQ(crowded.threads, 3);
  EXPECT_THAT(crowded.note, HasSubstr("bound to 1 core"));
}

TEST(Launcher, ARankHasNoMoreThreadsThanKokkosHasRoomFor) {
  for (const ThreadFacts& facts :
       {ThreadFacts{.requested = 513, .bound_cores = 2}, ThreadFacts{.cpus_per_task = 100000, .bound_cores = 100000},
        ThreadFacts{.node_cores = 768, .bound_cores = 768}}) {
    const ThreadChoice choice = choose_threads(facts);
    EXPECT_EQ(choice.threads, 512);
    EXPECT_THAT(choice.note, HasSubstr("(a rank uses at most 512: start more ranks)"));
  }
  EXPECT_THAT(choose_threads({.requested = 512, .bound_cores = 512}).note, Not(HasSubstr("at most")));
}

TEST(Launcher, ReadsTheEnvironment) {
  {
    const Environment threads("OMP_NUM_THREADS", "6,2"), cpus("SLURM_CPUS_PER_TASK", "3");
    EXPECT_EQ(find_thread_facts(1).requested, 6);
    EXPECT_EQ(find_thread_facts(1).cpus_per_task, 3);
  }
  for (const char* wrong : {"", "many", "0", "-2", "4x", "99999999999"}) {
    const Environment threads("OMP_NUM_THREADS", wrong);
    EXPECT_EQ(find_thread_facts(1).requested, 0) << wrong;
  }
}

TEST(Launcher, FindsTheCoresOfThisProcess) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  const ThreadFacts free = find_thread_facts(1);
  EXPECT_EQ(free.bound_cores, CPU_COUNT(&all));
  EXPECT_GE(free.node_cores, free.bound_cores);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const ThreadFacts bound = find_thread_facts(1);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(bound.bound_cores, 1);
  EXPECT_EQ(bound.node_cores, free.node_cores) << "binding hides no core of the node";
}

TEST(Launcher, SetsDefaultsThatTheUserMayReplace) {
  const Environment reachable("OMPI_MCA_reachable", nullptr), ucx("UCX_HANDLE_ERRORS", "bt"),
      yield("OMPI_MCA_mpi_yield_when_idle", nullptr), home("HOME", nullptr);
  set_mpi_defaults();
  EXPECT_STREQ(std::getenv("OMPI_MCA_reachable"), "weighted");
  EXPECT_STREQ(std::getenv("UCX_HANDLE_ERRORS"), "bt");
  EXPECT_STREQ(std::getenv("OMPI_MCA_mpi_yield_when_idle"), "1");
  EXPECT_NE(std::getenv("HOME"), nullptr);
}

}  // namespace
}  // namespace llmtrain
