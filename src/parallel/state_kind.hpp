#pragma once
#include <array>
#include <cstdint>

namespace llmtrain {

/// Kinds of state that every element has, in fp32. Weights are not among them: they are the rounded master.
enum class StateKind : uint8_t { master, m, v };
inline constexpr std::array state_kinds{StateKind::master, StateKind::m, StateKind::v};
inline constexpr int64_t state_bytes = 4;  ///< bytes per element and kind

}  // namespace llmtrain
