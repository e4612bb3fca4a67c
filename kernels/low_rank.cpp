#include "kernels/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "core/parallel_for.hpp"

namespace llmtrain {
namespace {

// Sums of products are std::fma throughout: a compiler that contracts them by itself may do so in one part of a
// vectorised loop and not in another, which would make results depend on the addresses of vectors.

constexpr int64_t lanes = 8;           ///< vectors that a pass over the matrix multiplies together
constexpr int64_t rows_at_once = 4;    ///< in a product
constexpr int64_t piece = 64;          ///< rows or columns of a task
constexpr int64_t most_vectors = 256;  ///< of a subspace, where its blocks are narrow
constexpr int64_t most_blocks = 6;     ///< of a subspace
constexpr int max_restarts = 24;
constexpr double tolerance = 1e-7;
constexpr int max_sweeps = 40;

using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;
using Lanes = std::array<double, lanes>;

size_t at(int64_t index) { return static_cast<size_t>(index); }

/// The sum is of 8 interleaved parts, so that it vectorises.
double dot(const Vector& a, const Vector& b) {
  Lanes sums{};
  const size_t whole = a.size() / lanes * lanes;
  for (size_t i = 0; i < whole; i += lanes) {
    for (size_t e = 0; e < lanes; ++e) sums[e] = std::fma(a[i + e], b[i + e], sums[e]);
  }
  for (size_t i = whole; i < a.size(); ++i) sums[i - whole] = std::fma(a[i], b[i], sums[i - whole]);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// y += factor x
void add(double factor, const Vector& x, Vector& y) {
  for (size_t i = 0; i < y.size(); ++i) y[i] = std::fma(factor, x[i], y[i]);
}

void scale(Vector& x, double factor) {
  for (double& value : x) value *= factor;
}

/// Runs work(first, last) for pieces of [0, count).
template <class Work>
void in_pieces(int64_t count, int64_t size, int threads, const Work& work) {
  parallel_for(at((count + size - 1) / size), threads, [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * size;
    work(first, std::min(first + size, count));
  });
}

class Matrix {
 public:
  Matrix(const float* values, int64_t rows, int64_t columns, int threads)
      : values_(values), rows_(rows), columns_(columns), threads_(threads) {}

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int threads() const { return threads_; }

  /// W x for every x.
  Vectors times(std::span<const Vector> x) const {
    const std::vector<std::vector<Lanes>> tiles = interleaved(x, columns_);
    Vectors y(x.size(), Vector(at(rows_)));
    in_pieces(rows_, piece, threads_, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; row += rows_at_once) {
        const int64_t count = std::min(rows_at_once, last - row);
        for (size_t t = 0; t < tiles.size(); ++t) multiply_rows(row, count, tiles[t], t, y);
      }
    });
    return y;
  }

  /// W^T y for every y.
  Vectors transposed_times(std::span<const Vector> y) const {
    const std::vector<std::vector<Lanes>> tiles = interleaved(y, rows_);
    Vectors x(y.size(), Vector(at(columns_)));
    in_pieces(columns_, piece, threads_, [&](int64_t first, int64_t last) {
      for (size_t t = 0; t < tiles.size(); ++t) multiply_columns(first, last, tiles[t], t, x);
    });
    return x;
  }

 private:
  /// Groups of 8 vectors, one value of each beside the other; the last group is filled with zeros.
  static std::vector<std::vector<Lanes>> interleaved(std::span<const Vector> x, int64_t length) {
    std::vector<std::vector<Lanes>> tiles((x.size() + lanes - 1) / lanes, std::vector<Lanes>(at(length)));
    for (size_t v = 0; v < x.size(); ++v) {
      for (size_t i = 0; i < at(length); ++i) tiles[v / lanes][i][v % lanes] = x[v][i];
    }
    return tiles;
  }

  void multiply_rows(int64_t row, int64_t count, const std::vector<Lanes>& x, size_t tile, Vectors& y) const {
    std::array<Lanes, rows_at_once> sums{};
    std::array<const float*, rows_at_once> w{};
    for (int64_t r = 0; r < rows_at_once; ++r) w[at(r)] = values_ + (row + std::min(r, count - 1)) * columns_;
    for (size_t k = 0; k < at(columns_); ++k) {
      const Lanes& value = x[k];
      for (size_t r = 0; r < rows_at_once; ++r) {
        const double factor = w[r][k];
        for (size_t e = 0; e < lanes; ++e) sums[r][e] = std::fma(factor, value[e], sums[r][e]);
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      for (size_t v = tile * lanes; v < std::min(y.size(), (tile + 1) * lanes); ++v) {
        y[v][at(row + r)] = sums[at(r)][v % lanes];
      }
    }
  }

  void multiply_columns(int64_t first, int64_t last, const std::vector<Lanes>& y, size_t tile, Vectors& x) const {
    std::array<Lanes, piece> sums{};
    for (int64_t row = 0; row < rows_; ++row) {
      const float* const w = values_ + row * columns_ + first;
      const Lanes value = y[at(row)];
      for (size_t k = 0; k < at(last - first); ++k) {
        const double factor = w[k];
        for (size_t e = 0; e < lanes; ++e) sums[k][e] = std::fma(factor, value[e], sums[k][e]);
      }
    }
    for (size_t v = tile * lanes; v < std::min(x.size(), (tile + 1) * lanes); ++v) {
      for (int64_t k = first; k < last; ++k) x[v][at(k)] = sums[at(k - first)][v % lanes];
    }
  }

  const float* values_;
  int64_t rows_, columns_;
  int threads_;
};

/// Fixed numbers in [-1, 1), the same in every run (splitmix64).
class Numbers {
 public:
  Vector vector(int64_t length) {
    Vector values(at(length));
    for (double& value : values) {
      uint64_t z = state_ += 0x9E3779B97F4A7C15U;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
      value = static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
    }
    return values;
  }

 private:
  uint64_t state_ = 0;
};

/// Orthonormal vectors that grow.
class Basis {
 public:
  Basis(int64_t length, int threads) : length_(length), threads_(threads) {}

  const Vectors& vectors() const { return vectors_; }
  int64_t size() const { return std::ssize(vectors_); }

  /// Adds the directions of vectors that are not in the space yet, and others in place of those that are. Every vector
  /// is made orthogonal twice, which is enough (Giraud et al. 2005).
  void append(Vectors added, Numbers& numbers) {
    Vector lengths;
    for (const Vector& x : added) lengths.push_back(std::sqrt(dot(x, x)));
    for (int pass = 0; pass < 2; ++pass) {
      parallel_for(added.size(), threads_, [&](size_t i) {
        for (const Vector& q : vectors_) add(-dot(q, added[i]), q, added[i]);
      });
    }
    const size_t before = vectors_.size();
    for (size_t i = 0; i < added.size(); ++i) {
      if (!append_one(std::move(added[i]), lengths[i], before)) {
        while (!append_one(numbers.vector(length_), std::sqrt(static_cast<double>(length_)), 0)) {
        }
      }
    }
  }

 private:
  /// Makes a vector orthogonal to those from number `first` on. Returns false if little of it is left.
  bool append_one(Vector x, double length, size_t first) {
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = first; i < vectors_.size(); ++i) add(-dot(vectors_[i], x), vectors_[i], x);
    }
    const double left = std::sqrt(dot(x, x));
    if (!(left > 1e-12 * length)) return false;
    scale(x, 1 / left);
    if (left < 1e-6 * length) {  // rounding of the first passes counts now
      for (const Vector& q : vectors_) add(-dot(q, x), q, x);
      scale(x, 1 / std::sqrt(dot(x, x)));
    }
    vectors_.push_back(std::move(x));
    return true;
  }

  int64_t length_;
  int threads_;
  Vectors vectors_;
};

/// Eigenvalues of a symmetric matrix in falling order, and its eigenvectors as rows, by Jacobi's rotations (Golub and
/// Van Loan, Matrix Computations, 8.5).
std::pair<Vector, Vectors> eigenvectors(Vectors a) {
  const size_t n = a.size();
  Vectors v(n, Vector(n));
  for (size_t i = 0; i < n; ++i) v[i][i] = 1;
  const auto rotate = [](double& x, double& y, double c, double s) {
    const double before = x;
    x = std::fma(c, before, -(s * y));
    y = std::fma(s, before, c * y);
  };
  double norm = 0;
  for (const Vector& row : a) norm += dot(row, row);
  for (int sweep = 0; sweep < max_sweeps; ++sweep) {
    double off = 0;
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) off = std::fma(a[p][q], a[p][q], off);
    }
    if (off <= 1e-32 * norm) break;
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) continue;
        const double tau = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const double t = (tau >= 0 ? 1 : -1) / (std::abs(tau) + std::sqrt(std::fma(tau, tau, 1.0)));
        const double c = 1 / std::sqrt(std::fma(t, t, 1.0)), s = t * c;
        for (size_t i = 0; i < n; ++i) rotate(a[i][p], a[i][q], c, s);
        for (size_t i = 0; i < n; ++i) rotate(a[p][i], a[q][i], c, s);
        for (size_t i = 0; i < n; ++i) rotate(v[p][i], v[q][i], c, s);
      }
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t x, size_t y) { return a[x][x] > a[y][y]; });
  std::pair<Vector, Vectors> found;
  for (const size_t i : order) {
    found.first.push_back(std::max(a[i][i], 0.0));
    found.second.push_back(std::move(v[i]));
  }
  return found;
}

/// The first `count` of the vectors' combinations.
Vectors combined(const Vectors& vectors, const Vectors& factors, int64_t count, int threads) {
  Vectors out(at(count), Vector(vectors.front().size()));
  parallel_for(out.size(), threads, [&](size_t i) {
    for (size_t j = 0; j < vectors.size(); ++j) add(factors[i][j], vectors[j], out[i]);
  });
  return out;
}

/// Singular vectors on the smaller side of a matrix, x, with their products W x or W^T x.
class SingularVectors {
 public:
  SingularVectors(const Matrix& matrix, int64_t rank)
      : matrix_(matrix),
        turned_(matrix.rows() < matrix.columns()),
        length_(std::min(matrix.rows(), matrix.columns())),
        rank_(rank),
        width_(std::min(length_, rank + std::max<int64_t>(8, rank / 4))),
        most_(std::min(length_, width_ * std::clamp<int64_t>(most_vectors / width_, 2, most_blocks))) {}

  LowRankPart find() {
    Vectors start;
    for (int64_t i = 0; i < width_; ++i) start.push_back(numbers_.vector(length_));
    for (int restart = 0; restart < max_restarts; ++restart) {
      Basis basis(length_, matrix_.threads());
      basis.append(std::move(start), numbers_);
      Vectors products = forward(basis.vectors());
      Vectors next = backward(products);
      if (restart > 0 && has_converged(basis.vectors(), next)) break;
      while (basis.size() < most_) {
        next.resize(std::min(next.size(), at(most_ - basis.size())));
        const auto before = basis.vectors().size();
        basis.append(std::exchange(next, {}), numbers_);
        Vectors more = forward(std::span(basis.vectors()).subspan(before));
        if (basis.size() < most_) next = backward(more);
        std::ranges::move(more, std::back_inserter(products));
      }
      rotate(basis.vectors(), products);
      if (basis.size() == length_) break;  // the whole space
      start = vectors_;
    }
    return result();
  }

 private:
  Vectors forward(std::span<const Vector> x) const { return turned_ ? matrix_.transposed_times(x) : matrix_.times(x); }
  Vectors backward(std::span<const Vector> y) const { return turned_ ? matrix_.times(y) : matrix_.transposed_times(y); }

  /// Finds the best vectors of a space (Rayleigh and Ritz).
  void rotate(const Vectors& basis, const Vectors& products) {
    Vectors gram(products.size(), Vector(products.size()));
    parallel_for(gram.size(), matrix_.threads(), [&](size_t i) {
      for (size_t j = 0; j < gram.size(); ++j) gram[i][j] = dot(products[std::max(i, j)], products[std::min(i, j)]);
    });
    auto [squares, factors] = eigenvectors(std::move(gram));
    squares_ = std::move(squares);
    vectors_ = combined(basis, factors, width_, matrix_.threads());
    products_ = combined(products, factors, width_, matrix_.threads());
  }

  /// `next`: W^T W x of vectors, whose squares of values are those of the last rotation.
  bool has_converged(const Vectors& vectors, const Vectors& next) const {
    for (int64_t i = 0; i < rank_; ++i) {
      Vector residual = next[at(i)];
      add(-squares_[at(i)], vectors[at(i)], residual);
      const double limit = tolerance * std::sqrt(squares_.front() * squares_[at(i)]);
      if (dot(residual, residual) > limit * limit) return false;
    }
    return true;
  }

  LowRankPart result() {
    LowRankPart found;
    for (int64_t i = 0; i < rank_; ++i) {
      const double value = std::sqrt(dot(products_[at(i)], products_[at(i)]));
      if (value > 0) scale(products_[at(i)], 1 / value);
      Vector& left = turned_ ? vectors_[at(i)] : products_[at(i)];
      Vector& right = turned_ ? products_[at(i)] : vectors_[at(i)];
      const auto largest = std::ranges::max_element(right, {}, [](double x) { return std::abs(x); });
      const double sign = *largest < 0 ? -1 : 1;
      scale(left, sign);
      scale(right, sign);
      found.values.push_back(value);
      found.left.insert(found.left.end(), left.begin(), left.end());
      found.right.insert(found.right.end(), right.begin(), right.end());
    }
    return found;
  }

  const Matrix& matrix_;
  bool turned_;
  int64_t length_, rank_, width_, most_;
  Numbers numbers_;
  Vector squares_;
  Vectors vectors_, products_;
};

}  // namespace

LowRankPart largest_singular_values(const float* matrix, int64_t rows, int64_t columns, int64_t rank, int threads) {
  const Matrix whole(matrix, rows, columns, threads);
  return SingularVectors(whole, rank).find();
}

LowRankPart first_of_qr(const float* matrix, int64_t rows, int64_t columns, int64_t rank, int threads) {
  Vectors first(at(rank), Vector(at(rows)));
  for (int64_t i = 0; i < rank; ++i) {
    for (int64_t row = 0; row < rows; ++row) first[at(i)][at(row)] = matrix[row * columns + i];
  }
  Numbers numbers;
  Basis basis(rows, threads);
  basis.append(std::move(first), numbers);
  const Vectors right = Matrix(matrix, rows, columns, threads).transposed_times(basis.vectors());
  LowRankPart found;
  found.values.assign(at(rank), 1);
  for (int64_t i = 0; i < rank; ++i) {
    found.left.insert(found.left.end(), basis.vectors()[at(i)].begin(), basis.vectors()[at(i)].end());
    found.right.insert(found.right.end(), right[at(i)].begin(), right[at(i)].end());
  }
  return found;
}

}  // namespace llmtrain
