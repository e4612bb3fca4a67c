#include <array>
#include <oneapi/dnnl/dnnl.hpp>

#include "device/processor.hpp"

namespace llmtrain {

bool processor_has(Instructions instructions) {
  constexpr std::array names{dnnl::cpu_isa::avx2, dnnl::cpu_isa::avx512_core, dnnl::cpu_isa::avx512_core_bf16,
                             dnnl::cpu_isa::avx512_core_amx};
  const auto wanted = static_cast<unsigned>(names[static_cast<size_t>(instructions)]);  // sets of features, a bit each
  static const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (have & wanted) == wanted;
}

}  // namespace llmtrain
