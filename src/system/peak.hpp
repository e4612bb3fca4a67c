#pragma once
#include <string_view>

namespace llmtrain {

/// Peak FLOP/s of dense matrix products on a GPU, by a part of its name, for operands in 16 bits, in TF32 or in fp32;
/// 0: unknown.
double peak_flops(std::string_view device, std::string_view precision);

}  // namespace llmtrain
