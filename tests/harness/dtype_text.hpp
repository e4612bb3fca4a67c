#pragma once
// DTypes by their names in what GoogleTest prints.

#include <ostream>

#include "core/dtype.hpp"

namespace llmtrain {

inline void PrintTo(DType dtype, std::ostream* out) { *out << name_of(dtype); }

}  // namespace llmtrain
