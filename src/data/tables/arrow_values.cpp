#include "data/tables/arrow_values.hpp"

#include <arrow/api.h>
#include <arrow/extension_type.h>
#include <arrow/util/float16.h>
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "data/tables/table_file.hpp"

namespace llmtrain {
namespace {

template <class Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);  // its type_id() says so
}

void append_float(double value, std::string& out) {
  if (!std::isfinite(value)) {  // JSON has none
    out += "null";
    return;
  }
  const size_t before = out.size();
  fmt::format_to(std::back_inserter(out), "{}", value);
  if (out.find_first_of(".e", before) == std::string::npos) out += ".0";
}

void append_bytes(std::string_view bytes, bool is_text, bool skips_binary, std::string& out) {
  if (find_invalid_utf8(bytes) == std::string_view::npos) {
    append_json_string(bytes, out);
  } else if (!is_text && skips_binary) {
    out += "null";
  } else {
    throw UserError(
        ExitCode::bad_content,
        is_text ? "a text is not UTF-8" : "its bytes are not a text in UTF-8: leave the column out of the table");
  }
}

template <class Array>
void append_number(const arrow::Array& array, int64_t row, std::string& out) {
  fmt::format_to(std::back_inserter(out), "{}", as<Array>(array).Value(row));
}

/// Lists of any kind.
template <class Array>
void append_list(const arrow::Array& array, int64_t row, bool skips_binary, std::string& out) {
  const auto& list = as<Array>(array);
  const arrow::Array& values = *list.values();
  const int64_t begin = list.value_offset(row), end = begin + list.value_length(row);
  out += '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    append_arrow_value(values, i, skips_binary, out);
  }
  out += ']';
}

void append_struct(const arrow::StructArray& array, int64_t row, bool skips_binary, std::string& out) {
  char separator = '{';
  for (int f = 0; f < array.num_fields(); ++f) {
    const std::shared_ptr<arrow::Array> field = array.field(f);
    if (field->IsNull(row) || field->type_id() == arrow::Type::NA) continue;  // as if it were missing
    out += separator;
    separator = ',';
    append_json_string(array.type()->field(f)->name(), out);
    out += ':';
    append_arrow_value(*field, row, skips_binary, out);
  }
  out += separator == '{' ? "{}" : "}";
}

/// An object if the keys are texts, otherwise a list of pairs.
void append_map(const arrow::MapArray& array, int64_t row, bool skips_binary, std::string& out) {
  const arrow::Array &keys = *array.keys(), &items = *array.items();
  const bool named = keys.type_id() == arrow::Type::STRING || keys.type_id() == arrow::Type::LARGE_STRING;
  out += named ? '{' : '[';
  const int64_t begin = array.value_offset(row), end = begin + array.value_length(row);
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    if (!named) out += '[';
    append_arrow_value(keys, i, skips_binary, out);
    out += named ? ':' : ',';
    append_arrow_value(items, i, skips_binary, out);
    if (!named) out += ']';
  }
  out += named ? '}' : ']';
}

}  // namespace

void append_arrow_value(const arrow::Array& array, int64_t row, bool skips_binary, std::string& out) {
  using arrow::Type;
  if (array.IsNull(row)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::NA:
      out += "null";
      return;
    case Type::BOOL:
      out += as<arrow::BooleanArray>(array).Value(row) ? "true" : "false";
      return;
    case Type::INT8:
      return append_number<arrow::Int8Array>(array, row, out);
    case Type::INT16:
      return append_number<arrow::Int16Array>(array, row, out);
    case Type::INT32:
      return append_number<arrow::Int32Array>(array, row, out);
    case Type::INT64:
      return append_number<arrow::Int64Array>(array, row, out);
    case Type::UINT8:
      return append_number<arrow::UInt8Array>(array, row, out);
    case Type::UINT16:
      return append_number<arrow::UInt16Array>(array, row, out);
    case Type::UINT32:
      return append_number<arrow::UInt32Array>(array, row, out);
    case Type::UINT64:
      return append_number<arrow::UInt64Array>(array, row, out);
    case Type::HALF_FLOAT:
      return append_float(arrow::util::Float16::FromBits(as<arrow::HalfFloatArray>(array).Value(row)).ToDouble(), out);
    case Type::FLOAT:
      return append_float(double{as<arrow::FloatArray>(array).Value(row)}, out);
    case Type::DOUBLE:
      return append_float(as<arrow::DoubleArray>(array).Value(row), out);
    case Type::STRING:
      return append_bytes(as<arrow::StringArray>(array).GetView(row), true, skips_binary, out);
    case Type::LARGE_STRING:
      return append_bytes(as<arrow::LargeStringArray>(array).GetView(row), true, skips_binary, out);
    case Type::STRING_VIEW:
      return append_bytes(as<arrow::StringViewArray>(array).GetView(row), true, skips_binary, out);
    case Type::BINARY:
      return append_bytes(as<arrow::BinaryArray>(array).GetView(row), false, skips_binary, out);
    case Type::LARGE_BINARY:
      return append_bytes(as<arrow::LargeBinaryArray>(array).GetView(row), false, skips_binary, out);
    case Type::BINARY_VIEW:
      return append_bytes(as<arrow::BinaryViewArray>(array).GetView(row), false, skips_binary, out);
    case Type::FIXED_SIZE_BINARY:
      return append_bytes(as<arrow::FixedSizeBinaryArray>(array).GetView(row), false, skips_binary, out);
    case Type::LIST:
      return append_list<arrow::ListArray>(array, row, skips_binary, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, row, skips_binary, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, row, skips_binary, out);
    case Type::LIST_VIEW:
      return append_list<arrow::ListViewArray>(array, row, skips_binary, out);
    case Type::LARGE_LIST_VIEW:
      return append_list<arrow::LargeListViewArray>(array, row, skips_binary, out);
    case Type::STRUCT:
      return append_struct(as<arrow::StructArray>(array), row, skips_binary, out);
    case Type::MAP:
      return append_map(as<arrow::MapArray>(array), row, skips_binary, out);
    case Type::DICTIONARY: {
      const auto& coded = as<arrow::DictionaryArray>(array);
      return append_arrow_value(*coded.dictionary(), coded.GetValueIndex(row), skips_binary, out);
    }
    case Type::EXTENSION:
      return append_arrow_value(*as<arrow::ExtensionArray>(array).storage(), row, skips_binary, out);
    default:  // times, decimal numbers and rare types, as Arrow writes them
      const auto scalar = array.GetScalar(row);
      if (!scalar.ok()) throw UserError(ExitCode::bad_content, scalar.status().message());
      append_bytes((*scalar)->ToString(), true, skips_binary, out);
  }
}

}  // namespace llmtrain
