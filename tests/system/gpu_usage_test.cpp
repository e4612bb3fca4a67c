// Values of GPUs come from NVML by its calls, loaded at run time; without it, or without a GPU's support for one, the
// rest stands.

#include "system/gpu_usage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "system/peak.hpp"

namespace llmtrain {
namespace {

using Values = std::map<std::string, double>;

Values sample(const std::vector<std::string>& addresses, const std::string& library) {
  Values values;
  for (const NamedValue& value : GpuUsage(addresses, library).sample()) values[value.name] = value.value;
  return values;
}

TEST(GpuUsage, CallsTheLibrary) {
  const Values of_first = {{"gpu0/utilization_percent", 90},  {"gpu0/memory_used_bytes", 30e9},
                           {"gpu0/memory_total_bytes", 80e9}, {"gpu0/power_watts", 612.5},
                           {"gpu0/clock_sm_mhz", 1755},       {"gpu0/clock_memory_mhz", 2619},
                           {"gpu0/temperature_celsius", 61}};
  EXPECT_EQ(sample({"0000:1b:00.0"}, LLMTRAIN_NVML_STUB), of_first);
  EXPECT_EQ(sample({"0000:1b:00.0", "0000:1b:00.0"}, LLMTRAIN_NVML_STUB), of_first) << "two ranks share a GPU";
}

TEST(GpuUsage, LeavesOutWhatAGpuDoesNotSupport) {
  const Values values = sample({"0000:3a:00.0", "0000:1b:00.0"}, LLMTRAIN_NVML_STUB);
  EXPECT_EQ(values.count("gpu1/power_watts"), 0u);
  EXPECT_EQ(values.at("gpu1/utilization_percent"), 91);
  EXPECT_EQ(values.at("gpu1/temperature_celsius"), 61);
  EXPECT_EQ(values.at("gpu0/power_watts"), 612.5) << "control";
}

TEST(GpuUsage, WithoutLibraryOrGpuThereAreNoValues) {
  EXPECT_TRUE(sample({"0000:1b:00.0"}, "libno-such-library.so.1").empty());
  EXPECT_TRUE(sample({}, LLMTRAIN_NVML_STUB).empty());
  EXPECT_TRUE(sample({"0000:ff:00.0"}, LLMTRAIN_NVML_STUB).empty()) << "a GPU that the library does not know";
}

TEST(GpuUsage, CountsEnergyIfEveryGpuDoes) {
  const auto joules = [](const std::vector<std::string>& addresses) {
    return GpuUsage(addresses, LLMTRAIN_NVML_STUB).joules();
  };
  EXPECT_EQ(joules({"0000:1b:00.0"}), 2.5);
  EXPECT_EQ(joules({"0000:1b:00.0", "0000:3a:00.0"}), std::nullopt);
  EXPECT_EQ(joules({"0000:ff:00.0"}), std::nullopt) << "a GPU that the library does not know";
  EXPECT_EQ(joules({}), 0.0);
}

TEST(PeakFlops, DependsOnDeviceAndPrecision) {
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3, 79 GiB, compute capability 9.0", "bf16"), 989.5e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", "bf16"), 756.5e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-40GB", "tf32"), 156e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-40GB", "fp32"), 19.5e12);
  EXPECT_EQ(peak_flops("AMD EPYC 9654 96-Core Processor", "bf16"), 0);
}

}  // namespace
}  // namespace llmtrain
