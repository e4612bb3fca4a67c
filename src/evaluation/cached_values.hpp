#pragma once
// Numbers that a run computes before training, kept in a file of data.cache for the runs after it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.hpp"

namespace llmtrain {

/// NaN stands for a number that is not computed yet.
bool is_missing(double value);
void set_missing(std::span<double> values);

/// Returns the numbers of a file on every rank; all are missing if there is none, or if it is damaged. Collective.
std::vector<double> find_cached_values(const std::string& path, int64_t count, Communicator& communicator);
/// Writes the file, with a digest that finds damage.
void write_cached_values(const std::string& path, const std::vector<double>& values);
/// Gives every rank the numbers that any rank has; no two ranks may have the same one. Collective.
void share_values(std::span<double> values, Communicator& communicator);

}  // namespace llmtrain
