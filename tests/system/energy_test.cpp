// The energy of a node comes from the files of Cray and of powercap: which zones count, counters that turn over, GPUs.

#include "system/energy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

class Energy : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void write_zone(const std::string& zone, const std::string& name, int64_t microjoules) const {
    write("sys/class/powercap/" + zone + "/name", name + "\n");
    write("sys/class/powercap/" + zone + "/energy_uj", std::to_string(microjoules) + "\n");
    write("sys/class/powercap/" + zone + "/max_energy_range_uj", "100000000\n");
  }

  test::TemporaryFolder root_;
  EnergyMeter meter_{root_.text()};
};

TEST_F(Energy, IsThatOfPackagesTheirMemoryAndTheGpus) {
  const auto write_all = [&](int64_t joules) {
    write_zone("intel-rapl:0", "package-0", 5'000'000 + 1'000'000 * joules);
    write_zone("intel-rapl:0:0", "core", 900'000 * joules);
    write_zone("intel-rapl:0:1", "dram", 100'000 * joules);
    write_zone("intel-rapl:1", "package-1", 2'000'000 * joules);
    write_zone("intel-rapl:2", "psys", 9'000'000 * joules);
    write_zone("intel-rapl-mmio:0", "package-0", 1'000'000 * joules);
  };
  write_all(0);
  EXPECT_EQ(meter_.sample(0.0), 0);
  write_all(10);
  EXPECT_NEAR(meter_.sample(7.5), 10 + 1 + 20 + 7.5, 1e-9);
}

TEST_F(Energy, GoesOnWhereACounterTurnsOver) {
  write_zone("intel-rapl:0", "package-0", 99'000'000);
  meter_.sample(0.0);
  write_zone("intel-rapl:0", "package-0", 2'000'000);
  EXPECT_NEAR(meter_.sample(0.0), 3, 1e-9);
  write_zone("intel-rapl:0", "package-0", 3'000'000);
  EXPECT_NEAR(meter_.sample(0.0), 4, 1e-9);
}

TEST_F(Energy, OfACrayNodeContainsItsGpus) {
  write_zone("intel-rapl:0", "package-0", 0);
  write("sys/cray/pm_counters/energy", "43891371 J 1442346612424591 us\n");
  EXPECT_EQ(meter_.sample(0.0), 0);
  write("sys/cray/pm_counters/energy", "43891671 J 1442346613424591 us\n");
  EXPECT_EQ(meter_.sample(100.0), 300);
}

TEST_F(Energy, IsUnknownWithoutACounterOfAllParts) {
  EXPECT_TRUE(std::isnan(meter_.sample(0.0))) << "no counter";
  write_zone("intel-rapl:0", "package-0", 0);
  EXPECT_TRUE(std::isnan(meter_.sample(std::nullopt))) << "GPUs that do not count";
  EXPECT_EQ(meter_.sample(0.0), 0) << "control";
  fs::remove(root_ / "sys/class/powercap/intel-rapl:0/energy_uj");
  EXPECT_TRUE(std::isnan(meter_.sample(0.0)));
}

}  // namespace
}  // namespace llmtrain
