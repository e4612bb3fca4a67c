#pragma once
#include <cmath>

namespace llmtrain::test {

/// Of two errors, on the way to the largest of many. NaN is the largest of all: std::max and std::fmax drop it, and a
/// result that is not a number would pass every bound.
inline double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace llmtrain::test
