#pragma once
// Numbers formatted for people.

#include <cstdint>
#include <string>

namespace llmtrain {

/// Formats with this many decimals; long numbers get an exponent, and nan has no sign.
std::string number_text(double value, int decimals);
std::string with_unit(double value, const std::string& unit);  ///< 1234567 -> "1.23 M"
std::string duration(double seconds);                          ///< "1 h 02 min"
std::string bytes_text(double bytes);                          ///< "3.40 GiB"
std::string count_text(int64_t n);                             ///< 1234567 -> "1,234,567"
/// Returns, for example, "1 row", "1,234 rows".
std::string counted(int64_t n, const std::string& noun);

}  // namespace llmtrain
