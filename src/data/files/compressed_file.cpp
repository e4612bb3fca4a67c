#include "data/files/compressed_file.hpp"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace llmtrain {
namespace {

constexpr int64_t input_bytes = int64_t{1} << 18;
// No UTF-8 text begins with either of them.
constexpr std::string_view gzip_magic = "\x1F\x8B", zstd_magic = "\x28\xB5\x2F\xFD";

struct PackedEnding {
  std::string_view ending;
  Compression compression;
};
constexpr PackedEnding packed_endings[] = {{".gz", Compression::gzip},
                                           {".gzip", Compression::gzip},
                                           {".zst", Compression::zstd},
                                           {".zstd", Compression::zstd}};

}  // namespace

bool has_ending(std::string_view path, std::string_view ending) {
  if (path.size() <= ending.size()) return false;
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(ending.begin(), ending.end(), path.end() - static_cast<std::ptrdiff_t>(ending.size()),
                    [&](char a, char b) { return small(a) == small(b); });
}

Compression compression_of(std::string_view path) {
  for (const PackedEnding& packed : packed_endings) {
    if (has_ending(path, packed.ending)) return packed.compression;
  }
  return Compression::none;
}

Compression compression_of(const FileHandle& file) {
  std::array<char, 4> first{};
  const auto read = static_cast<size_t>(file.read_some(0, first.size(), first.data()));
  const std::string_view begin(first.data(), read);
  if (begin.starts_with(gzip_magic)) return Compression::gzip;
  return begin.starts_with(zstd_magic) ? Compression::zstd : compression_of(file.path());
}

std::string_view uncompressed_name(std::string_view path) {
  for (const PackedEnding& packed : packed_endings) {
    if (has_ending(path, packed.ending)) return path.substr(0, path.size() - packed.ending.size());
  }
  return path;
}

/// Decompresses as much as there is room for.
class CompressedReader::Decoder {
 public:
  virtual ~Decoder() = default;
  /// Advances both; returns the problem if the input is corrupt, otherwise an empty text.
  virtual std::string run(std::string_view& input, char*& output, int64_t& room) = 0;
  /// Returns true between members, where the input may end.
  virtual bool at_border() const = 0;
};

namespace {

class GzipDecoder final : public CompressedReader::Decoder {
 public:
  GzipDecoder() { LLMTRAIN_CHECK(inflateInit2(&stream_, 15 + 16) == Z_OK, "zlib cannot start"); }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  std::string run(std::string_view& input, char*& output, int64_t& room) override {
    if (at_border_) {  // padding, or the next member
      input.remove_prefix(std::min(input.find_first_not_of('\0'), input.size()));
      if (input.empty()) return "";
      if (input.front() != gzip_magic.front())
        return "the bytes after the compressed data are neither another member nor zeros";
      inflateReset(&stream_);
      at_border_ = false;
    }
    const auto most = static_cast<uInt>(std::min<int64_t>(room, int64_t{1} << 30));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));  // zlib's interface is not const
    stream_.avail_in = static_cast<uInt>(input.size());
    stream_.next_out = reinterpret_cast<Bytef*>(output);
    stream_.avail_out = most;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    input.remove_prefix(input.size() - stream_.avail_in);
    output += most - stream_.avail_out;
    room -= most - stream_.avail_out;
    at_border_ = status == Z_STREAM_END;
    if (status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR) return "";
    return stream_.msg != nullptr ? stream_.msg : "gzip cannot read it";
  }
  bool at_border() const override { return at_border_; }

 private:
  z_stream stream_{};
  bool at_border_ = false;  // an empty file is not a gzip file
};

class ZstdDecoder final : public CompressedReader::Decoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDStream()) { LLMTRAIN_CHECK(stream_ != nullptr, "zstd cannot start"); }
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  std::string run(std::string_view& input, char*& output, int64_t& room) override {
    ZSTD_inBuffer in{input.data(), input.size(), 0};
    ZSTD_outBuffer out{output, static_cast<size_t>(room), 0};
    const size_t status = ZSTD_decompressStream(stream_, &out, &in);
    input.remove_prefix(in.pos);
    output += out.pos;
    room -= static_cast<int64_t>(out.pos);
    at_border_ = status == 0;
    return ZSTD_isError(status) != 0 ? ZSTD_getErrorName(status) : "";
  }
  bool at_border() const override { return at_border_; }

 private:
  ZSTD_DStream* stream_;
  bool at_border_ = false;
};

}  // namespace

CompressedReader::CompressedReader(const FileHandle& file, Compression compression, int64_t limit)
    : file_(file), limit_(limit) {
  LLMTRAIN_CHECK(compression != Compression::none, "the file is not compressed");
  if (compression == Compression::gzip) {
    decoder_ = std::make_unique<GzipDecoder>();
  } else {
    decoder_ = std::make_unique<ZstdDecoder>();
  }
}

CompressedReader::~CompressedReader() = default;

int64_t CompressedReader::position() const { return input_offset_ + static_cast<int64_t>(input_used_); }

void CompressedReader::refuse(const std::string& what) const {
  throw UserError(ExitCode::bad_content, fmt::format("{}: compressed byte {}: {}", file_.path(), position(), what));
}

/// Reads more when all input is used; returns false at the end of the file.
bool CompressedReader::fill() {
  if (input_used_ < input_.size()) return true;
  input_offset_ += static_cast<int64_t>(input_.size());
  input_.resize(static_cast<size_t>(input_bytes));
  input_.resize(static_cast<size_t>(file_.read_some(input_offset_, input_bytes, input_.data())));
  input_used_ = 0;
  return !input_.empty();
}

int64_t CompressedReader::read(char* data, int64_t count) {
  char* output = data;
  int64_t room = count;
  while (room > 0 && !ended_) {
    const bool more = fill();
    if (!more && decoder_->at_border()) {
      ended_ = true;
      break;
    }
    std::string_view input = std::string_view(input_).substr(input_used_);
    const int64_t before = room;
    const std::string problem = decoder_->run(input, output, room);
    input_used_ = input_.size() - input.size();
    if (!problem.empty()) refuse(problem);
    if (!more && room == before) refuse("the file ends within its compressed data: it was cut off; copy it again");
    given_ += before - room;
    if (given_ > limit_) {
      refuse(fmt::format(
          "it unpacks to more than {} bytes, the value of data.unpacked_limit; raise it if the file is right", limit_));
    }
  }
  return output - data;
}

}  // namespace llmtrain
