// Encoding of a text's documents of about 64 KiB, in several passes; prints seconds, seconds of processor time and
// tokens of each pass.
//
// usage: tokenizer_bench TOKENIZER TEXT [passes [threads]]   (benchmarks/peers/tokenizers_encode.py runs it beside its
// peers)

#include <fmt/core.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/parallel_for.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

/// Cuts after the first line end that follows each 64 KiB, as the peer does.
std::vector<std::string_view> documents_of(std::string_view text) {
  constexpr size_t document_bytes = size_t{1} << 16;
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    const size_t line_end = text.find('\n', document_bytes);
    const size_t length = line_end == std::string_view::npos ? text.size() : line_end + 1;
    documents.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return documents;
}

void measure(const std::string& path, const std::string& text_path, int passes, int threads) {
  const auto tokenizer = load_tokenizer(path, "");
  const std::string text = FileHandle::open_to_read(text_path).read_text(INT64_MAX);
  const std::vector<std::string_view> documents = documents_of(text);
  for (int pass = 0; pass < passes; ++pass) {
    std::atomic<size_t> tokens{0};
    const double begin = now();
    const std::clock_t worked = std::clock();
    parallel_for(documents.size(), threads, [&](size_t i) {
      thread_local std::vector<int32_t> ids;
      ids.clear();
      tokenizer->encode(documents[i], ids);
      tokens += ids.size();
    });
    const double processor = static_cast<double>(std::clock() - worked) / CLOCKS_PER_SEC;
    fmt::print("{:.6f} {:.6f} {}\n", now() - begin, processor, tokens.load());
  }
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenizer_bench TOKENIZER TEXT [passes [threads]]\n");
    return 64;
  }
  try {
    llmtrain::measure(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 3, argc > 4 ? std::atoi(argv[4]) : 1);
  } catch (const llmtrain::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
