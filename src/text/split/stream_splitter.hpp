#pragma once
#include <algorithm>
#include <string>
#include <string_view>

#include "text/split/pretokenize.hpp"

namespace llmtrain {

/// Splits a text that arrives in blocks into words; the words do not depend on the blocks. Memory is that of the
/// longest word.
class StreamSplitter {
 public:
  /// A longer word is cut when one more byte is known, so that text without any border (or a line of gigabytes) stays
  /// bounded.
  static constexpr size_t longest_piece = size_t{1} << 20;

  explicit StreamSplitter(const SplitPattern& pattern) : pattern_(pattern) {}

  /// sink(std::string_view) receives the words that the text after `part` cannot change.
  template <class Sink>
  void add(std::string_view block, const Sink& sink) {
    while (!block.empty()) {
      const size_t room = longest_piece + 1 - held_.size();
      const size_t taken = std::min(block.size(), room);
      if (held_.empty()) {
        const size_t done = split_or_cut(block.substr(0, taken), sink);
        if (taken == block.size()) held_ = block.substr(done);
        block.remove_prefix(taken == block.size() ? taken : done);
      } else {
        held_ += block.substr(0, taken);
        held_.erase(0, split_or_cut(held_, sink));
        block.remove_prefix(taken);
      }
    }
  }

  /// Ends the text and passes on the rest of its words. A new text may follow.
  template <class Sink>
  void finish(const Sink& sink) {
    split(held_, true, sink);
    held_.clear();
  }

 private:
  /// Returns the end of the words that are final.
  template <class Sink>
  size_t split(std::string_view text, bool at_end, const Sink& sink) const {
    const SplitScanner scanner(text);
    size_t i = 0;
    while (i < text.size()) {
      scanner.forget_end();
      const size_t end = pattern_.piece_end(scanner, i);
      if (scanner.reached_end() && !at_end) break;
      sink(text.substr(i, end - i));
      i = end;
    }
    return i;
  }

  template <class Sink>
  size_t split_or_cut(std::string_view text, const Sink& sink) const {
    const size_t done = split(text, false, sink);
    return done > 0 || text.size() <= longest_piece ? done : split(text, true, sink);
  }

  const SplitPattern& pattern_;
  std::string held_;  // at most longest_piece + 1 bytes
};

}  // namespace llmtrain
