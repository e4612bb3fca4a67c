#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace llmtrain::host {

/// Page-aligned temporary memory that only grows: no allocation after the largest request.
class Buffer {
 public:
  /// Returns at least `bytes`; the contents are lost when it grows.
  char* reserve(int64_t bytes) {
    if (bytes > bytes_) {
      constexpr int64_t page = 4096;
      const int64_t rounded = (bytes + page - 1) / page * page;
      memory_.reset();
      bytes_ = 0;
      memory_.reset(static_cast<char*>(std::aligned_alloc(page, static_cast<size_t>(rounded))));
      if (!memory_) throw std::bad_alloc();
      bytes_ = rounded;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t bytes_ = 0;
};

}  // namespace llmtrain::host
