// Parquet and Arrow by Apache Arrow's library. A group is read by one thread, a batch of rows at a time, whose pages
// alone are in memory; libraries' own threads would take the cores of other ranks.

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <functional>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "data/tables/arrow_values.hpp"
#include "data/tables/table_file.hpp"

namespace llmtrain {
namespace {

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}", where, what));
}

/// `why`: what Arrow says.
[[noreturn]] void refuse_content(const std::string& where, std::string_view why) {
  const std::string_view line = why.substr(0, why.find('\n'));
  refuse(where, fmt::format("the file is damaged, or of a kind that Arrow does not read: copy or write it again ({})",
                            printable(line.substr(0, 200))));
}

void check(const arrow::Status& status, const std::string& where) {
  if (!status.ok()) refuse_content(where, status.message());
}

template <class T>
T take(arrow::Result<T> result, const std::string& where) {
  check(result.status(), where);
  return std::move(result).ValueUnsafe();
}

/// Parquet's lower functions throw.
template <class Work>
auto guarded(const std::string& where, const Work& work) {
  try {
    return work();
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    refuse_content(where, error.what());
  }
}

/// The rows of batches as lines.
class BatchRows : public TableReader {
 public:
  BatchRows(const std::string& path, const TableColumns& columns, int64_t limit)
      : TableReader(path, limit), columns_(columns) {}

 protected:
  const TableColumns& columns() const { return columns_; }
  /// Returns null at the end. `where` becomes the place of the batch.
  virtual std::shared_ptr<arrow::RecordBatch> next_batch(std::string& where) = 0;

 private:
  bool add_rows(std::string& lines) override {
    while (batch_ == nullptr || row_ == batch_->num_rows()) {
      row_ = 0;
      batch_ = guarded(path(), [&] { return next_batch(where_); });
      if (batch_ == nullptr) return false;
      find_read_columns();
    }
    for (; row_ < batch_->num_rows() && lines.size() < block_bytes; ++row_) add_row(lines);
    return true;
  }

  struct Column {
    int number;
    std::string key;  ///< as JSON
    bool is_number;   ///< a decimal number in a column of values; others are texts, since fp64 has not all digits
  };

  void find_read_columns() {
    read_.clear();
    for (int c = 0; c < batch_->num_columns(); ++c) {
      const arrow::Field& field = *batch_->schema()->field(c);
      if (!reads_column(columns_, field.name())) continue;
      const bool is_value = std::ranges::find(columns_.values, field.name()) != columns_.values.end();
      read_.push_back({c, "", is_value && arrow::is_decimal(field.type()->id())});
      append_json_string(field.name(), read_.back().key);
    }
  }

  void add_row(std::string& lines) {
    lines += '{';
    for (const Column& column : read_) {
      if (lines.back() != '{') lines += ',';
      lines += column.key + ":";
      try {
        value_.clear();
        append_arrow_value(*batch_->column(column.number), row_, columns_.skips_binary, value_);
        const bool quoted = column.is_number && value_.front() == '"';
        lines += quoted ? std::string_view(value_).substr(1, value_.size() - 2) : std::string_view(value_);
      } catch (const UserError& error) {
        refuse(where_,
               fmt::format("column {}: {}", printable(batch_->schema()->field(column.number)->name()), error.what()));
      }
    }
    lines += "}\n";
  }

  TableColumns columns_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::string where_;
  std::vector<Column> read_;
  std::string value_;
  int64_t row_ = 0;
};

// ---- Parquet --------------------------------------------------------------------------------------------------------

using ParquetReader = std::unique_ptr<parquet::arrow::FileReader>;

ParquetReader open_parquet(const std::string& path) {
  return guarded(path, [&] {
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    properties.enable_buffered_stream();  // else a whole column of a group is in memory
    properties.set_buffer_size(int64_t{1} << 20);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(false);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.OpenFile(path, false, properties), path);
    return take(builder.properties(arrow_properties)->Build(), path);
  });
}

std::string group_text(const std::string& path, int64_t group, int64_t groups) {
  return fmt::format("{}: row group {} of {}", path, group + 1, groups);
}

class ParquetRows final : public BatchRows {
 public:
  ParquetRows(const std::string& path, const TableColumns& columns, int64_t begin, int64_t end, int64_t limit)
      : BatchRows(path, columns, limit), reader_(open_parquet(path)), group_(begin), end_(end) {
    const parquet::SchemaDescriptor& schema = *facts().schema();
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      if (reads_column(columns, schema.GetColumnRoot(leaf)->name())) leaves_.push_back(leaf);
    }
  }
  int64_t position() const override { return facts().num_row_groups() == 0 ? 0 : bytes_; }

 private:
  const parquet::FileMetaData& facts() const { return *reader_->parquet_reader()->metadata(); }

  std::shared_ptr<arrow::RecordBatch> next_batch(std::string& where) override {
    for (; group_ < end_; ++group_) {
      where = group_text(path(), group_, facts().num_row_groups());
      if (batches_ == nullptr) open_group(where);
      std::shared_ptr<arrow::RecordBatch> batch = guarded(where, [&] { return take(batches_->Next(), where); });
      if (batch != nullptr) return batch;
      batches_.reset();
      bytes_ += std::max<int64_t>(0, facts().RowGroup(static_cast<int>(group_))->total_compressed_size());
    }
    return nullptr;
  }

  void open_group(const std::string& where) {
    guarded(where, [&] {
      const auto group = facts().RowGroup(static_cast<int>(group_));
      constexpr int64_t batch_bytes = int64_t{16} << 20, most = 1024;
      const int64_t mean = group->total_byte_size() / std::max<int64_t>(1, group->num_rows());  // bytes of a row
      reader_->set_batch_size(std::clamp<int64_t>(batch_bytes / std::max<int64_t>(1, mean), 1, most));
      batches_ = take(reader_->GetRecordBatchReader({static_cast<int>(group_)}, leaves_), where);
    });
  }

  ParquetReader reader_;
  std::vector<int> leaves_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of group_
  int64_t group_, end_;
  int64_t bytes_ = 4;
};

class ParquetTable final : public TableFile {
 public:
  ParquetTable(std::string path, TableColumns columns) : path_(std::move(path)), columns_(std::move(columns)) {
    const ParquetReader reader = open_parquet(path_);
    facts_ = reader->parquet_reader()->metadata();
    const auto& root = *facts_->schema()->group_node();
    std::vector<std::string> names;
    names.reserve(static_cast<size_t>(root.field_count()));
    for (int f = 0; f < root.field_count(); ++f) names.push_back(root.field(f)->name());
    check_column_names(path_, names);
  }
  int64_t groups() const override { return facts_->num_row_groups(); }
  std::unique_ptr<TextReader> read(int64_t begin, int64_t end, int64_t limit) const override {
    return std::make_unique<ParquetRows>(path_, columns_, begin, end, limit);
  }
  std::string place_of(int64_t row) const override {
    int64_t before = 0;
    for (int g = 0; g < facts_->num_row_groups(); ++g) {
      before += facts_->RowGroup(g)->num_rows();
      if (row <= before) return fmt::format("{}:{} (row group {} of {})", path_, row, g + 1, groups());
    }
    return fmt::format("{}:{}", path_, row);
  }

 private:
  std::string path_;
  TableColumns columns_;
  std::shared_ptr<parquet::FileMetaData> facts_;
};

// ---- Arrow ----------------------------------------------------------------------------------------------------------

/// A file of batches, which can be read in any order, or a stream.
class ArrowBatches {
 public:
  ArrowBatches(const std::string& path, const TableColumns& columns) : path_(path) {
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.use_threads = false;
    open(options);
    const std::vector<std::string> names = schema().field_names();
    check_column_names(path, names);
    if (columns.read.empty()) return;
    for (size_t f = 0; f < names.size(); ++f) {
      if (reads_column(columns, names[f])) options.included_fields.push_back(static_cast<int>(f));
    }
    if (options.included_fields.empty() && !names.empty()) options.included_fields = {0};  // for the number of rows
    open(options);
  }

  bool is_stream() const { return file_ == nullptr; }
  int64_t groups() const { return file_ ? file_->num_record_batches() : 1; }
  /// Batches of a stream are read in their order; null at its end.
  std::shared_ptr<arrow::RecordBatch> read(int64_t number, std::string& where) {
    where = file_ ? fmt::format("{}: record batch {} of {}", path_, number + 1, groups())
                  : fmt::format("{}: record batch {}", path_, number + 1);
    return guarded(where, [&] {
      std::shared_ptr<arrow::RecordBatch> batch;
      if (file_) {
        batch = take(file_->ReadRecordBatch(static_cast<int>(number)), where);
      } else {
        check(stream_->ReadNext(&batch), where);
      }
      if (batch != nullptr) check(batch->ValidateFull(), where);
      return batch;
    });
  }
  int64_t position() const { return input_->Tell().ValueOr(0); }

 private:
  const arrow::Schema& schema() const { return file_ ? *file_->schema() : *stream_->schema(); }
  void open(const arrow::ipc::IpcReadOptions& options) {
    guarded(path_, [&] {
      input_ = take(arrow::io::ReadableFile::Open(path_), path_);
      char first = '\0';
      take(input_->ReadAt(0, 1, &first), path_);
      check(input_->Seek(0), path_);
      if (first == 'A') {
        file_ = take(arrow::ipc::RecordBatchFileReader::Open(input_, options), path_);
      } else {
        stream_ = take(arrow::ipc::RecordBatchStreamReader::Open(input_, options), path_);
      }
    });
  }

  std::string path_;
  std::shared_ptr<arrow::io::ReadableFile> input_;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_;  // null for a stream
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream_;
};

class ArrowRows final : public BatchRows {
 public:
  ArrowRows(const std::string& path, const TableColumns& columns, int64_t begin, int64_t end, int64_t limit)
      : BatchRows(path, columns, limit), batches_(path, columns), next_(begin), end_(end) {}
  int64_t position() const override { return batches_.position(); }

 private:
  std::shared_ptr<arrow::RecordBatch> next_batch(std::string& where) override {
    return next_ == end_ ? nullptr : batches_.read(next_++, where);
  }
  ArrowBatches batches_;
  int64_t next_, end_;
};

class ArrowTable final : public TableFile {
 public:
  ArrowTable(const std::string& path, const TableColumns& columns) : path_(path), columns_(columns) {
    const ArrowBatches batches(path, columns);
    is_stream_ = batches.is_stream();
    groups_ = batches.groups();
  }

  int64_t groups() const override { return groups_; }
  std::unique_ptr<TextReader> read(int64_t begin, int64_t end, int64_t limit) const override {
    return std::make_unique<ArrowRows>(path_, columns_, begin, is_stream_ ? INT64_MAX : end, limit);
  }
  std::string place_of(int64_t row) const override {
    ArrowBatches batches(path_, columns_);
    std::string where;
    int64_t before = 0;
    for (int64_t b = 0; is_stream_ || b < groups_; ++b) {
      const auto batch = batches.read(b, where);
      if (batch == nullptr) break;
      before += batch->num_rows();
      if (row <= before) return fmt::format("{}:{} (record batch {})", path_, row, b + 1);
    }
    return fmt::format("{}:{}", path_, row);
  }

 private:
  std::string path_;
  TableColumns columns_;
  bool is_stream_ = false;  // which says where it ends
  int64_t groups_ = 0;
};

}  // namespace

std::unique_ptr<TableFile> open_arrow_table(const std::string& path, TableKind kind, const TableColumns& columns) {
  if (kind == TableKind::parquet) return std::make_unique<ParquetTable>(path, columns);
  return std::make_unique<ArrowTable>(path, columns);
}

}  // namespace llmtrain
