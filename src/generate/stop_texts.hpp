#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_stream.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {

/// Text of a continuation that grows by tokens and is ended by stop texts, in time linear in its length.
class StopTextStream {
 public:
  /// `stop` must outlive it.
  StopTextStream(const Tokenizer& tokenizer, std::vector<int32_t> prompt, const std::vector<std::string>& stop)
      : stream_(tokenizer, std::move(prompt)), stop_(stop) {
    for (const std::string& one : stop_) longest_stop_ = std::max(longest_stop_, one.size());
  }

  /// Returns false if a stop text has occurred; the text ends before the first one.
  bool add(int32_t token) {
    const size_t searched = stop_.empty() ? 0 : held_back(stream_.certain());
    stream_.add(token);
    for (const std::string& stop : stop_) end_ = std::min(end_, stream_.text().find(stop, searched));
    return end_ == std::string::npos;
  }
  std::string_view text() const { return std::string_view(stream_.text()).substr(0, end_); }
  /// Returns the number of bytes that no later token changes and in which no stop text can begin.
  size_t certain() const { return end_ == std::string::npos ? held_back(stream_.certain()) : text().size(); }

 private:
  size_t held_back(size_t certain) const {
    size_t end = certain - std::min(certain, longest_stop_);
    for (int i = 0; i < 3 && end > 0 && is_utf8_continuation(stream_.text()[end]); ++i) --end;
    return end;
  }

  TextStream stream_;
  const std::vector<std::string>& stop_;
  size_t longest_stop_ = 0;
  size_t end_ = std::string::npos;  ///< begin of the stop text
};

}  // namespace llmtrain
