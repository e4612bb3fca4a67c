#include <gtest/gtest.h>

#include <algorithm>

#include "hf/convert.hpp"
#include "hf/files.hpp"
#include "hf/model_files.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {
namespace {

class ReadSlice : public testing::TestWithParam<StoredType> {
 protected:
  /// A matrix of the model, stored after some other bytes.
  StoredSlice store(int64_t rows, int64_t columns, bool transposed) {
    values_.clear();
    for (int64_t i = 0; i < rows * columns; ++i) values_.push_back(test::element_of("m", i));
    std::vector<float> stored(values_.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        stored[static_cast<size_t>(transposed ? c * rows + r : r * columns + c)] =
            values_[static_cast<size_t>(r * columns + c)];
      }
    }
    std::string bytes(stored.size() * static_cast<size_t>(bits_of(GetParam())) / 8, '\0');
    from_float(GetParam(), stored.data(), rows * columns, bytes.data());
    file_ = FileHandle::open_to_read(folder_.write("data", "1234567" + bytes));
    tensor_.type = GetParam();
    tensor_.shape = {rows, columns};
    tensor_.begin = 7;
    tensor_.end = 7 + static_cast<int64_t>(bytes.size());
    return {&tensor_, &file_, rows, columns, transposed};
  }
  void expect_range(const StoredSlice& slice, int64_t begin, int64_t end) {
    std::vector<float> out(static_cast<size_t>(end - begin) + 2, -7.0f);
    const int64_t bytes = read_slice(slice, begin, end, out.data() + 1);
    EXPECT_TRUE(std::equal(values_.begin() + begin, values_.begin() + end, out.begin() + 1))
        << slice.rows << " x " << slice.columns << " [" << begin << ", " << end << ")" << slice.transposed;
    EXPECT_EQ(out.front(), -7.0f);
    EXPECT_EQ(out.back(), -7.0f);
    const int64_t needed = (end - begin) * bits_of(GetParam()) / 8;
    EXPECT_LE(bytes, slice.transposed ? tensor_.end - tensor_.begin : needed);
    EXPECT_GE(bytes, needed);
  }

  test::ScratchFolder folder_{test::unique_name("slice")};
  std::vector<float> values_;
  WeightIndex::Tensor tensor_;
  FileHandle file_;
};

TEST_P(ReadSlice, AnyRangeOfAnyOrientation) {
  for (const bool transposed : {false, true}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(1, 1), {7, 5}, {3001, 5}, {5, 3001}, {700, 701}}) {
      const StoredSlice slice = store(rows, columns, transposed);
      const int64_t n = rows * columns;
      expect_range(slice, 0, n);
      expect_range(slice, n - 1, n);
      expect_range(slice, n / 3, n / 3);
      for (int64_t i = 1; i < 12; ++i) {
        const int64_t begin = n * i / 17, end = begin + (n - begin) / i;
        expect_range(slice, begin, end);
        expect_range(slice, begin, std::min(begin + i, n));
      }
    }
  }
}

TEST_P(ReadSlice, FewColumnsOfAWideMatrixAreReadAlone) {
  const StoredSlice slice = store(8000, 20, true);  // [20, 8000] in the file: gaps of more than a page
  expect_range(slice, 20 * 100, 20 * 110);
  std::vector<float> out(200);
  EXPECT_EQ(read_slice(slice, 20 * 100, 20 * 110, out.data()), 200 * bits_of(GetParam()) / 8);
}

TEST_P(ReadSlice, BlocksOfAnyOrientation) {
  for (const bool transposed : {false, true}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(60, 50), {3001, 8}, {8, 3001}}) {
      const StoredSlice whole = store(rows, columns, transposed);
      const std::vector<float> all = values_;
      for (const TensorBlock& block :
           {TensorBlock{rows / 3, 0, rows, columns}, {0, columns / 4, rows, columns}, {rows / 2, 3, rows, columns}}) {
        StoredSlice slice = whole;
        slice.rows = rows / 4;
        slice.columns = block.first_column == 0 && block.first_row > 0 ? columns : columns / 2;
        slice.block = block;
        values_.clear();
        for (int64_t r = 0; r < slice.rows; ++r) {
          const auto from = all.begin() + (block.first_row + r) * columns + block.first_column;
          values_.insert(values_.end(), from, from + slice.columns);
        }
        const int64_t n = slice.rows * slice.columns;
        for (int64_t i = 1; i < 9; ++i) expect_range(slice, n * i / 17, n * i / 17 + (n - n * i / 17) / i);
        expect_range(slice, 0, n);
        slice.block->first_column = block.first_column == 0 ? 0 : block.first_column - 1;
        slice.block->first_row = block.first_column == 0 ? block.first_row - 1 : block.first_row;
        std::vector<float> moved(static_cast<size_t>(n));
        read_slice(slice, 0, n, moved.data());
        EXPECT_NE(moved, values_) << "control";
      }
    }
  }
}

TEST_P(ReadSlice, AFileThatShrinksIsAnError) {
  const StoredSlice slice = store(100, 100, false);
  std::filesystem::resize_file(folder_.at("data"), 1000);
  std::vector<float> out(10000);
  EXPECT_THROW(read_slice(slice, 0, 10000, out.data()), UserError);
}

INSTANTIATE_TEST_SUITE_P(Types, ReadSlice, testing::Values(StoredType::F32, StoredType::BF16, StoredType::F16));

}  // namespace
}  // namespace llmtrain
