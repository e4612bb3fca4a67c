#include "core/number_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace llmtrain {

std::string number_text(double value, int decimals) {
  if (std::isnan(value)) return "nan";
  return std::abs(value) < 1e6 ? fmt::format("{:.{}f}", value, decimals) : fmt::format("{:.{}e}", value, decimals);
}

std::string with_unit(double value, const std::string& unit) {
  static constexpr std::array<const char*, 6> prefixes = {"", "k", "M", "G", "T", "P"};
  size_t i = 0;
  while (std::abs(value) >= 999.5 && i + 1 < prefixes.size()) {
    value /= 1000;
    ++i;
  }
  const int decimals = i == 0 && value == std::floor(value) ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}{}", value, decimals, prefixes[i], unit);
}

std::string duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", std::max(seconds, 0.0));
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 48 * 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 6> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t i = 0;
  while (bytes >= 1000 && i + 1 < units.size()) {
    bytes /= 1024;
    ++i;
  }
  return i == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.{}f} {}", bytes, bytes < 9.995 ? 2 : 1, units[i]);
}

std::string count_text(int64_t n) {
  std::string digits = std::to_string(n), out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string counted(int64_t n, const std::string& noun) { return count_text(n) + " " + noun + (n == 1 ? "" : "s"); }

}  // namespace llmtrain
