#pragma once
// Use of a node's GPUs, through NVIDIA's management library (NVML), which is loaded when it is wanted: it comes with
// the driver.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

class GpuUsage {
 public:
  /// `addresses`: bus addresses of the GPUs ("0000:1b:00.0"). Without the library, or without a GPU in it, there are no
  /// values.
  explicit GpuUsage(const std::vector<std::string>& addresses, const std::string& library = "libnvidia-ml.so.1");
  ~GpuUsage();
  GpuUsage(const GpuUsage&) = delete;
  GpuUsage& operator=(const GpuUsage&) = delete;

  /// Current values, "gpu0/utilization_percent" and so on by the numbers of nvidia-smi. What a GPU does not support is
  /// left out.
  std::vector<NamedValue> sample() const;
  /// Counter of the energy of all these GPUs; 0 without GPUs, empty if one of them has no such counter.
  std::optional<double> joules() const;

 private:
  struct Library;
  std::unique_ptr<const Library> library_;
  bool wanted_;  ///< true if there are addresses
};

}  // namespace llmtrain
