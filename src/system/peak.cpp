#include "system/peak.hpp"

#include <algorithm>
#include <array>

namespace llmtrain {

namespace {

struct Peak {
  std::string_view name;    ///< part of the device's name; the first that matches counts
  double half, tf32, fp32;  ///< TFLOP/s, dense
};

// NVIDIA's data sheets of the products.
constexpr std::array peaks = {
    Peak{"B200", 2250, 1125, 75},     Peak{"GH200", 989.5, 494.7, 66.9},    Peak{"H200 NVL", 835.5, 417.7, 60.3},
    Peak{"H200", 989.5, 494.7, 66.9}, Peak{"H100 NVL", 835.5, 417.7, 60.3}, Peak{"H100 PCIe", 756.5, 378, 51.2},
    Peak{"H100", 989.5, 494.7, 66.9}, Peak{"A100", 312, 156, 19.5},         Peak{"A30", 165, 82, 10.3},
    Peak{"A40", 149.7, 74.8, 37.4},   Peak{"L40S", 362, 183, 91.6},
};

}  // namespace

double peak_flops(std::string_view device, std::string_view precision) {
  const auto found =
      std::ranges::find_if(peaks, [&](const Peak& peak) { return device.find(peak.name) != std::string_view::npos; });
  if (found == peaks.end()) return 0;
  if (precision == "bf16" || precision == "fp16") return found->half * 1e12;
  return (precision == "tf32" ? found->tf32 : found->fp32) * 1e12;
}

}  // namespace llmtrain
