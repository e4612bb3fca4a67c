#pragma once
#include <cmath>

namespace llmtrain::test {

/// The larger of two errors, for a maximum over many. NaN is the largest of all: std::max and std::fmax drop it, and a
/// result that is not a number would pass every bound.
inline double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace llmtrain::test
