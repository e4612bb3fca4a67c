#pragma once
// Low-rank parts of a matrix on the host, in fp64: the largest singular values with their vectors, and the first
// columns of a QR decomposition. Results are the same for any number of threads.

#include <cstdint>
#include <vector>

namespace llmtrain {

/// sum over i of values[i] x (left row i)^T x (right row i).
struct LowRankPart {
  std::vector<double> values;  ///< [rank]
  std::vector<double> left;    ///< [rank, rows], unit vectors
  std::vector<double> right;   ///< [rank, columns]
};

/// The `rank` largest singular values of a matrix [rows, columns], in falling order, by block Krylov subspaces with
/// restarts (Musco and Musco 2015, arXiv:1504.05477): exact to rounding for matrices whose smaller side is a few times
/// the rank, else until residuals are below 1e-7 of the largest value times the vector's own, or 24 restarts have
/// passed. The largest component of a right vector is positive. 1 <= rank <= min(rows, columns).
LowRankPart largest_singular_values(const float* matrix, int64_t rows, int64_t columns, int64_t rank, int threads);

/// The first `rank` columns of Q, as rows of `left`, and rows of R, as rows of `right`; values are 1. The diagonal of R
/// is not negative. 1 <= rank <= min(rows, columns).
LowRankPart first_of_qr(const float* matrix, int64_t rows, int64_t columns, int64_t rank, int threads);

}  // namespace llmtrain
