#include "core/error.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {
namespace {

constexpr int32_t byte_count = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool with_bos) : with_bos_(with_bos) {}

  std::string kind() const override { return "bytes"; }
  int64_t vocabulary_size() const override { return byte_count + (with_bos_ ? 2 : 1); }
  int32_t eos_id() const override { return byte_count; }
  int32_t bos_id() const override { return with_bos_ ? byte_count + 1 : -1; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }
  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    encode(text, ids);
    for (size_t i = 0; i < text.size(); ++i) ranges.push_back({i, i + 1});
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < byte_count) text += static_cast<char>(id);
    }
    return text;
  }

  std::string serialized() const override {
    return with_bos_ ? R"({"type":"bytes","bos":true})" : R"({"type":"bytes","bos":false})";
  }

 private:
  bool with_bos_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer(bool with_bos) { return std::make_unique<ByteTokenizer>(with_bos); }

}  // namespace llmtrain
