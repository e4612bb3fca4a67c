#pragma once
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

#include "core/deck/deck_value.hpp"

namespace llmtrain {

/// The codec of a number that kernels use in fp32: both the value and its fp32 rounding must be in the key's range; the
/// rounding must be finite, and 0 only if the value is 0.
struct Fp32Number {
  static double parse(std::string_view text, const KeyInfo& info) {
    const double value = parse_number(text, info.range);
    const auto used = static_cast<float>(value);
    if (!std::isfinite(used)) refuse(text, "too large for fp32, in which it is used: the maximum is 3.4e38");
    if (used == 0 && value != 0) {
      refuse(text, "0 in fp32, in which it is used: write 0, or at least 1.4e-45");
    }
    if (!info.range.contains(used)) {
      refuse(text, fmt::format("{} in fp32, in which it is used: must be {}", used, info.range.text()));
    }
    return value;
  }
  static std::string print(double value) { return DeckValue<double>::print(value); }
  static std::string type() { return DeckValue<double>::type(); }

 private:
  [[noreturn]] static void refuse(std::string_view text, std::string_view what) {
    throw UserError(ExitCode::deck, fmt::format("'{}' is {}", text, what));
  }
};

}  // namespace llmtrain
