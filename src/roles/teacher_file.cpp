#include "roles/teacher_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/whole_file.hpp"

namespace llmtrain {

namespace {

struct Header {
  std::array<char, 24> name = {"llmtrain teacher 1"};
  int64_t samples = 0, tokens = 0, vocabulary = 0, top_k = 0;
};

/// Places of the samples, behind the header.
int64_t place_of_first_token(int64_t sample) { return static_cast<int64_t>(sizeof(Header)) + 8 * sample; }
int64_t place_of_flag(const TeacherFileShape& shape, int64_t sample) {
  return place_of_first_token(shape.samples + 1) + sample;
}

/// Never 0, as a record that was not written has.
uint32_t checksum(const char* record, int64_t bytes) {
  return static_cast<uint32_t>(digest_of(record, static_cast<size_t>(bytes)).low) | 1U;
}

}  // namespace

int64_t TeacherFileShape::bytes() const {
  return (place_of_flag(*this, samples) + 7) / 8 * 8 + tokens * record_bytes();
}

void TeacherValues::resize(const TeacherFileShape& shape, int64_t count) {
  tokens.resize(static_cast<size_t>(count * shape.top_k));
  logp.resize(static_cast<size_t>(count * (shape.top_k == 0 ? shape.vocabulary : shape.top_k)));
  rest.resize(static_cast<size_t>(shape.top_k == 0 ? 0 : count));
}

void TeacherFile::create(const std::string& path, const TeacherFileShape& shape,
                         std::span<const int64_t> first_tokens) {
  LLMTRAIN_CHECK(std::ssize(first_tokens) == shape.samples + 1 && first_tokens.back() == shape.tokens,
                 "the first token of each sample");
  WholeFile file(path);
  const Header header{
      .samples = shape.samples, .tokens = shape.tokens, .vocabulary = shape.vocabulary, .top_k = shape.top_k};
  file.file().write(0, sizeof header, &header);
  file.file().write(place_of_first_token(0), static_cast<int64_t>(first_tokens.size_bytes()), first_tokens.data());
  const std::vector<char> flags(static_cast<size_t>(shape.samples), 0);
  file.file().write(place_of_flag(shape, 0), std::ssize(flags), flags.data());
  if (!file.file().reserve(shape.bytes())) {
    throw UserError(ExitCode::io, fmt::format("{}: the disk has no room for {} bytes", path, shape.bytes()));
  }
  file.file().write(shape.bytes() - 1, 1, "");  // where the file system reserves nothing, this gives it its size
  file.publish_if_absent();
}

TeacherFile::TeacherFile(const std::string& path, bool writes)
    : file_(writes ? FileHandle::open_to_write(path) : FileHandle::open_to_read(path)) {
  Header header;
  const bool whole = file_.read_some(0, sizeof header, &header) == static_cast<int64_t>(sizeof header);
  constexpr int64_t most = int64_t{1} << 50;
  const bool sound = whole && header.name == Header().name && header.samples >= 0 && header.samples < most &&
                     header.tokens >= 0 && header.vocabulary > 0 && header.vocabulary < most && header.top_k >= 0 &&
                     header.top_k <= header.vocabulary;
  if (sound) shape_ = {header.samples, header.tokens, header.vocabulary, header.top_k};
  if (!sound || header.tokens > most / shape_.record_bytes() || file_.size() != shape_.bytes()) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: no log-probabilities of a teacher: delete the file", path));
  }
  file_.expect_scattered_reads();
}

std::vector<uint8_t> TeacherFile::complete_samples() const {
  std::vector<uint8_t> flags(static_cast<size_t>(shape_.samples));
  file_.read(place_of_flag(shape_, 0), shape_.samples, flags.data());
  return flags;
}

void TeacherFile::mark_complete(int64_t first, int64_t last) const {
  const std::vector<uint8_t> flags(static_cast<size_t>(last - first), 1);
  file_.write(place_of_flag(shape_, first), std::ssize(flags), flags.data());
}

/// The rows of a sample follow each other.
void TeacherFile::find_tokens(const HostBatch& batch, std::vector<int64_t>& tokens) const {
  tokens.assign(batch.ids.size(), -1);
  int64_t sample = -1, next = 0;
  for (size_t row = 0; row < tokens.size(); ++row) {
    if (!is_trained_row(batch, row)) continue;
    if (batch.sequence_ids[row] != sample) {
      sample = batch.sequence_ids[row];
      LLMTRAIN_CHECK(sample >= 0 && sample < shape_.samples, "a sample of the data that the teacher has scored");
      file_.read(place_of_first_token(sample), sizeof next, &next);
    }
    LLMTRAIN_CHECK(next >= 0 && next < shape_.tokens, "a token of the data that the teacher has scored");
    tokens[row] = next++;
  }
}

void TeacherFile::write(int64_t token, const TeacherValues& values, int64_t index) const {
  record_.resize(static_cast<size_t>(shape_.record_bytes()));
  char* to = record_.data();
  const auto put = [&](const auto& column, int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof column[0];
    std::memcpy(to, column.data() + index * count, bytes);
    to += bytes;
  };
  if (shape_.top_k > 0) put(values.tokens, shape_.top_k);
  put(values.logp, shape_.top_k > 0 ? shape_.top_k : shape_.vocabulary);
  if (shape_.top_k > 0) put(values.rest, 1);
  const uint32_t sum = checksum(record_.data(), to - record_.data());
  std::memcpy(to, &sum, sizeof sum);
  file_.write(place_of(token), std::ssize(record_), record_.data());
}

void TeacherFile::read(std::span<const int64_t> tokens, TeacherValues& values) const {
  values.resize(shape_, std::ssize(tokens));
  const int64_t bytes = shape_.record_bytes();
  for (size_t begin = 0; begin < tokens.size();) {  // consecutive tokens at once
    size_t end = begin + 1;
    while (end < tokens.size() && tokens[begin] >= 0 && tokens[end] == tokens[end - 1] + 1) ++end;
    const auto count = static_cast<int64_t>(end - begin);
    if (tokens[begin] >= 0) {
      record_.resize(static_cast<size_t>(count * bytes));
      file_.read(place_of(tokens[begin]), count * bytes, record_.data());
    }
    for (int64_t i = 0; i < count && tokens[begin] >= 0; ++i) {
      const char* from = record_.data() + i * bytes;
      uint32_t sum = 0;
      std::memcpy(&sum, from + bytes - 4, sizeof sum);
      bool sound = sum == checksum(from, bytes - 4);
      const auto get = [&](auto& column, int64_t width) {
        const auto size = static_cast<size_t>(width) * sizeof column[0];
        std::memcpy(column.data() + (static_cast<int64_t>(begin) + i) * width, from, size);
        from += size;
      };
      if (shape_.top_k > 0) get(values.tokens, shape_.top_k);
      get(values.logp, shape_.top_k > 0 ? shape_.top_k : shape_.vocabulary);
      if (shape_.top_k > 0) get(values.rest, 1);
      for (int64_t k = 0; k < shape_.top_k; ++k) {
        const int32_t token = values.tokens[static_cast<size_t>((static_cast<int64_t>(begin) + i) * shape_.top_k + k)];
        sound = sound && token >= 0 && token < shape_.vocabulary;
      }
      if (!sound) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: the log-probabilities of token {} are damaged: delete the file", path(),
                                    tokens[begin] + i));
      }
    }
    begin = end;
  }
}

}  // namespace llmtrain
