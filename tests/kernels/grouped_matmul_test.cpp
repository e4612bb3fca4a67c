// Products of several matrices in one call: right, and with the bits that each row and each gradient has alone.

#include "kernels/grouped_matmul.hpp"

#include <numeric>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::stream;
using test::Values;

/// Matrices [outputs, inputs] with rows of their own.
struct Shape {
  int64_t outputs, inputs;
  std::vector<int64_t> rows;
};
// Less than a tile, none, one, a border beside each side of half a tile; more than one tile; inner dimensions that are
// no multiples of what is held at once, rows that are not aligned, matrices that go to the device one by one.
const std::vector<Shape> shapes = {{24, 72, {0, 1, 63, 0, 64, 65, 0}},
                                   {70, 33, {5, 0, 130}},
                                   {136, 200, {129, 3}},
                                   {8, 3080, {2, 0, 1}},
                                   {16, 8, std::vector<int64_t>(70, 1)}};

class Group {
 public:
  Group(const Shape& s, DType in, DType out)
      : s_(s),
        n_(std::accumulate(s.rows.begin(), s.rows.end(), int64_t{0})),
        out_(out),
        x_(in, {n_, s.inputs}, test::random_values(n_ * s.inputs, 1)),
        dy_(in, {n_, s.outputs}, test::random_values(n_ * s.outputs, 2)) {
    for (size_t i = 0; i < s.rows.size(); ++i) {
      w_.emplace_back(in, std::initializer_list<int64_t>{s.outputs, s.inputs},
                      test::random_values(s.outputs * s.inputs, 10 + i));
      bias_.emplace_back(in, std::initializer_list<int64_t>{s.outputs}, test::random_values(s.outputs, 100 + i));
    }
  }

  int64_t rows() const { return n_; }
  /// Calls f(matrix, row) for all rows.
  template <class F>
  void each_row(const F& f) const {
    int64_t row = 0;
    for (size_t i = 0; i < s_.rows.size(); ++i) {
      for (int64_t r = 0; r < s_.rows[i]; ++r) f(i, row++);
    }
  }
  /// Rows [first, first + count) of the result, all of which have matrix i if it is not negative.
  Array run(bool backward, int64_t first, int64_t count, int64_t i = -1) const {
    std::vector<MatrixRows> matrices;
    const auto add = [&](size_t m, int64_t of_matrix) {
      matrices.push_back({w_[m], backward ? Tensor() : bias_[m].tensor(), of_matrix});
    };
    for (size_t m = 0; m < s_.rows.size() && i < 0; ++m) add(m, s_.rows[m]);
    if (i >= 0) add(static_cast<size_t>(i), count);
    Array result(out_, {count, backward ? s_.inputs : s_.outputs});
    if (backward) {
      grouped_backward_input(result, dy_.tensor().rows(first, count), matrices, stream());
    } else {
      grouped_forward(result, x_.tensor().rows(first, count), matrices, ProductRole::prefill, stream());
    }
    return result;
  }
  /// `shift`: the matrix of a row is so many further on.
  Values expected(bool backward, size_t shift = 0) const {
    const Values in = backward ? dy_.values() : x_.values();
    const auto inner = static_cast<size_t>(backward ? s_.outputs : s_.inputs);
    const auto columns = static_cast<size_t>(backward ? s_.inputs : s_.outputs);
    std::vector<Values> w, bias;
    for (size_t i = 0; i < w_.size(); ++i) {
      w.push_back(w_[i].values());
      bias.push_back(bias_[i].values());
    }
    Values out;
    each_row([&](size_t i, int64_t row) {
      const size_t of = (i + shift) % w.size();
      for (size_t c = 0; c < columns; ++c) {
        double sum = backward ? 0 : bias[of][c];
        for (size_t k = 0; k < inner; ++k) {
          sum += in[static_cast<size_t>(row) * inner + k] * w[of][backward ? k * columns + c : c * inner + k];
        }
        out.push_back(sum);
      }
    });
    return out;
  }
  /// Gradients of rows [first_row, first_row + count) of all matrices, or of one, each after the other.
  Values gradients(int64_t first_row, int64_t count, int64_t only = -1, int times = 1) const {
    std::vector<Array> dw;
    std::vector<MatrixGradient> calls;
    int64_t first = 0;
    for (size_t i = 0; i < s_.rows.size(); first += s_.rows[i++]) {
      if (only >= 0 && static_cast<int64_t>(i) != only) continue;
      dw.emplace_back(DType::f32, std::initializer_list<int64_t>{count, s_.inputs},
                      Values(static_cast<size_t>(count * s_.inputs), 7.0));
      calls.push_back({dw.back(), first_row, first, s_.rows[i]});
    }
    for (int t = 0; t < times; ++t) grouped_backward_weight(calls, dy_, x_, t > 0, stream());
    Values all;
    for (const Array& d : dw) {
      const Values values = d.values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  Values expected_gradients() const {
    const auto m = static_cast<size_t>(s_.outputs), k = static_cast<size_t>(s_.inputs);
    const Values x = x_.values(), dy = dy_.values();
    Values all(m * k * s_.rows.size(), 0.0);
    each_row([&](size_t i, int64_t n) {
      const auto row = static_cast<size_t>(n);
      for (size_t o = 0; o < m; ++o) {
        for (size_t c = 0; c < k; ++c) all[(i * m + o) * k + c] += dy[row * m + o] * x[row * k + c];
      }
    });
    return all;
  }

 private:
  Shape s_;
  int64_t n_;
  DType out_;
  Array x_, dy_;
  std::vector<Array> w_, bias_;
};

class GroupedMatmul : public testing::TestWithParam<DType> {};

TEST_P(GroupedMatmul, IsTheProductOfEachRowWithItsMatrix) {
  for (const Shape& s : shapes) {
    for (const DType out : {GetParam(), DType::f32}) {
      const Group group(s, GetParam(), out);
      for (const bool backward : {false, true}) {
        const Values expected = group.expected(backward);
        const Values found = group.run(backward, 0, group.rows()).values();
        const auto inner = static_cast<double>(backward ? s.outputs : s.inputs);
        const auto bound = [&](size_t i) { return 2e-6 * inner + test::storing_error(out, expected[i]); };
        const std::string what = std::to_string(s.outputs) + " x " + std::to_string(s.inputs);
        test::expect_close(found, expected, bound, what);
        const Values other = group.expected(backward, 1);
        EXPECT_GT(std::fabs(found[0] - other[0]), bound(0)) << "the control: another matrix; " << what;
      }
    }
  }
}

TEST_P(GroupedMatmul, ARowsBitsDoNotDependOnTheOthers) {
  for (const Shape& s : shapes) {
    const Group group(s, GetParam(), DType::f32);
    for (const bool backward : {false, true}) {
      if (backward && s.inputs > 3072) continue;  // the library's order for so many rows
      const Bytes all = group.run(backward, 0, group.rows()).bytes();
      const auto bytes = static_cast<std::ptrdiff_t>(all.size()) / group.rows();
      int64_t seen = 0, differ = 0;
      group.each_row([&](size_t i, int64_t row) {
        if (row % 31 != 0 && row + 1 != group.rows()) return;
        const Bytes whole(all.begin() + row * bytes, all.begin() + (row + 1) * bytes);
        EXPECT_EQ(group.run(backward, row, 1, static_cast<int64_t>(i)).bytes(), whole) << "row " << row;
        differ += group.run(backward, row, 1, static_cast<int64_t>((i + 1) % s.rows.size())).bytes() == whole ? 0 : 1;
        ++seen;
      });
      EXPECT_GT(seen, 0);
      EXPECT_EQ(differ, seen) << "the control: another matrix";
    }
  }
}

TEST_P(GroupedMatmul, GradientsAreSumsOfTheirRows) {
  for (const Shape& s : shapes) {
    const Group group(s, GetParam(), DType::f32);
    const Values expected = group.expected_gradients(), found = group.gradients(0, s.outputs);
    const auto bound = [&](size_t) { return 1e-6 * static_cast<double>(group.rows()); };
    test::expect_close(found, expected, bound, "one call");
    Values twice = expected;
    for (double& v : twice) v *= 2;
    test::expect_close(
        group.gradients(0, s.outputs, -1, 2), twice, [&](size_t i) { return 2 * bound(i); }, "added");
    if (s.inputs > 3072) continue;
    const auto each = static_cast<std::ptrdiff_t>(s.outputs * s.inputs), row = static_cast<std::ptrdiff_t>(s.inputs);
    for (size_t i = 0; i < s.rows.size(); i += 3) {
      const auto begin = found.begin() + static_cast<std::ptrdiff_t>(i) * each;
      const auto of = static_cast<int64_t>(i);
      EXPECT_EQ(group.gradients(0, s.outputs, of), Values(begin, begin + each)) << "alone";
      EXPECT_EQ(group.gradients(3, 4, of), Values(begin + 3 * row, begin + 7 * row)) << "some of its rows";
      if (s.rows[i] > 0) {
        EXPECT_NE(group.gradients(2, 4, of), Values(begin + 3 * row, begin + 7 * row)) << "the control: other rows";
      }
    }
  }
}

TEST_P(GroupedMatmul, RefusesRowsWithoutAMatrix) {
  const Array x(GetParam(), {3, 8}), w(GetParam(), {4, 8}), other(GetParam(), {8, 8}), y(GetParam(), {3, 4});
  const auto run = [&](const std::vector<MatrixRows>& matrices) {
    grouped_forward(y, x, matrices, ProductRole::prefill, stream());
  };
  EXPECT_NO_THROW(run({{w, {}, 2}, {w, {}, 1}}));
  EXPECT_THROW(run({{w, {}, 2}}), Error);
  EXPECT_THROW(run({{w, {}, 2}, {w, {}, 2}}), Error);
  EXPECT_THROW(run({{w, {}, 2}, {other, {}, 1}}), Error);
}

INSTANTIATE_TEST_SUITE_P(Types, GroupedMatmul, testing::Values(DType::f32, DType::bf16, DType::f16));

}  // namespace
}  // namespace llmtrain
