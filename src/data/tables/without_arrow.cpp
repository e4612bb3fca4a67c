// Parquet and Arrow in a build without Apache Arrow's library.

#include <fmt/format.h>

#include "core/error.hpp"
#include "data/tables/table_file.hpp"

namespace llmtrain {

std::unique_ptr<TableFile> open_arrow_table(const std::string& path, TableKind kind, const TableColumns&) {
  throw UserError(
      ExitCode::bad_content,
      fmt::format(
          "{}: this llmtrain was built without Apache Arrow, which reads {}: `pip install --target DIR pyarrow`, "
          "and build it with cmake -DLLMTRAIN_ARROW_ROOT=DIR; or convert the file to rows of JSON, e.g. with "
          "duckdb -c \"COPY (SELECT * FROM 'FILE.parquet') TO 'FILE.jsonl' (FORMAT json)\"",
          path, kind == TableKind::parquet ? "Parquet" : "Arrow"));
}

}  // namespace llmtrain
