#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace llmtrain {

/// Runs work(0) .. work(count - 1) on threads; rethrows the exception of the lowest index.
template <class Work>
void parallel_for(size_t count, int threads, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min(static_cast<size_t>(threads), count); ++t) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace llmtrain
