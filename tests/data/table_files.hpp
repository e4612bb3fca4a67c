#pragma once
#include <string>

#include "data/tables/table_file.hpp"
#include "data_files.hpp"

namespace llmtrain::test {

inline const std::string table_folder = "tests/reference/tables/";

/// True if the build reads Parquet and Arrow.
inline bool has_arrow() {
  return refusal([] { open_table(table_folder + "ids.parquet", TableKind::parquet, {}); }) == "nothing was thrown";
}

}  // namespace llmtrain::test

/// Leaves out a test of a build that does not read Parquet and Arrow.
#define LLMTRAIN_NEEDS_ARROW()        \
  if (!::llmtrain::test::has_arrow()) \
  GTEST_SKIP() << "this build has no Apache Arrow: cmake/install_dependencies.sh --arrow"
