// Encoding on one thread: a text's documents of about 64 KiB, as often as asked; the seconds of processor time of each
// pass, and the tokens.
//
// usage: tokenizer_bench TOKENIZER TEXT [passes]   (benchmarks/peers/tokenizers_encode.py runs it beside its
// peers)

#include <fmt/core.h>

#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/file_handle.hpp"
#include "text/tokenizer_files.hpp"

namespace llmtrain {
namespace {

/// Cut behind the first line end after each 64 KiB, as the peer does.
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

void measure(const std::string& path, const std::string& text_path, int passes) {
  const auto tokenizer = load_tokenizer(path, "");
  const std::string text = FileHandle::open_to_read(text_path).read_text(INT64_MAX);
  const std::vector<std::string_view> documents = documents_of(text);
  std::vector<int32_t> ids;
  for (int pass = 0; pass < passes; ++pass) {
    size_t tokens = 0;
    const std::clock_t begin = std::clock();
    for (const std::string_view document : documents) {
      ids.clear();
      tokenizer->encode(document, ids);
      tokens += ids.size();
    }
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    fmt::print("{:.6f} {}\n", seconds, tokens);
  }
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenizer_bench TOKENIZER TEXT [passes]\n");
    return 64;
  }
  try {
    llmtrain::measure(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 3);
  } catch (const llmtrain::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
