#include "data/files/foreign_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/delimiter_mover.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/token_file_writer.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

constexpr int64_t ids_per_read = int64_t{1} << 20;  ///< ids per read
constexpr int64_t llmc_header = 256 * 4;
constexpr int32_t llmc_gpt2 = 20240520, llmc_llama3 = 20240801;
constexpr int32_t llama3_begin = 128000, llama3_end = 128001;  ///< <|begin_of_text|> and <|end_of_text|>
constexpr int64_t megatron_header = 34;  ///< magic, uint64 version, uint8 type, uint64 sequences, uint64 documents
constexpr std::string_view megatron_magic{"MMIDIDX\0\0", 9};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitCode::bad_content, path + ": " + what);
}

enum class IdType : uint8_t { u8, u16, i16, i32, u32, i64 };
int64_t width_of(IdType type) {
  constexpr std::array<int64_t, 6> widths = {1, 2, 2, 4, 4, 8};
  return widths[static_cast<size_t>(type)];
}

struct Shard {
  FileHandle file;
  int64_t begin = 0;  ///< byte of the first id
  int64_t tokens = 0;
};

struct Source {
  std::vector<Shard> shards;
  int64_t tokens = 0;  ///< total number
  IdType type = IdType::u16;
  bool delimiter_leads = false;     ///< True if a token precedes a document instead of following it
  int64_t delimiter = -1;           ///< this token; -1: that of eos_id
  std::vector<uint64_t> documents;  ///< n + 1 offsets; empty: EOS ends documents
  int64_t vocabulary_size = 0;      ///< 0: not in the format
  int64_t eos_id = -1;
};

template <class T>
T at(const char* bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t id_at(IdType type, const char* bytes, int64_t i) {
  switch (type) {
    case IdType::u8:
      return at<uint8_t>(bytes, i);
    case IdType::u16:
      return at<uint16_t>(bytes, i);
    case IdType::i16:
      return at<int16_t>(bytes, i);
    case IdType::i32:
      return at<int32_t>(bytes, i);
    case IdType::u32:
      return at<uint32_t>(bytes, i);
    case IdType::i64:
      return at<int64_t>(bytes, i);
  }
  return -1;
}

void add_shard(Source& s, FileHandle file, int64_t begin, int64_t tokens) {
  s.shards.push_back({std::move(file), begin, tokens});
  s.tokens += tokens;
}

Source open_nanogpt(const std::vector<std::string>& paths) {
  Source s;
  for (const std::string& path : paths) {
    FileHandle file = FileHandle::open_to_read(path);
    const int64_t bytes = file.size();
    if (bytes % 2 != 0) refuse(path, fmt::format("{} bytes are not a whole number of uint16 ids", bytes));
    add_shard(s, std::move(file), 0, bytes / 2);
  }
  return s;
}

Source open_llmc(const std::vector<std::string>& paths) {
  Source s;
  s.delimiter_leads = true;
  int32_t magic = 0;
  for (const std::string& path : paths) {
    FileHandle file = FileHandle::open_to_read(path);
    std::array<int32_t, 3> header{};
    if (file.size() < llmc_header) refuse(path, "too short for the header of llm.c's token files");
    file.read(0, sizeof(header), header.data());
    const bool llama3 = header[0] == llmc_llama3;
    if (!llama3 && header[0] != llmc_gpt2) {
      refuse(path, fmt::format("not a token file of llm.c: it begins with {} instead of {} or {}", header[0], llmc_gpt2,
                               llmc_llama3));
    }
    if (magic != 0 && header[0] != magic) {
      refuse(path, "its ids come from another tokenizer than those of " + paths.front());
    }
    magic = header[0];
    const int32_t version = llama3 ? 7 : 1;
    if (header[1] != version) refuse(path, fmt::format("version {} is not supported, only {}", header[1], version));
    s.type = llama3 ? IdType::u32 : IdType::u16;
    s.vocabulary_size = llama3 ? 128256 : 50257;
    s.eos_id = llama3 ? llama3_end : 50256;
    if (llama3) s.delimiter = llama3_begin;
    if (header[2] < 0 || file.size() != llmc_header + header[2] * width_of(s.type)) {
      refuse(path, fmt::format("it has {} bytes, but its header declares {} tokens", file.size(), header[2]));
    }
    add_shard(s, std::move(file), llmc_header, header[2]);
  }
  return s;
}

std::optional<IdType> megatron_type(uint8_t code) {
  switch (code) {
    case 1:
      return IdType::u8;
    case 3:
      return IdType::i16;
    case 4:
      return IdType::i32;
    case 5:
      return IdType::i64;
    case 8:
      return IdType::u16;
    default:
      return std::nullopt;
  }
}

std::string megatron_name(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

template <class T>
std::vector<T> read_array(const FileHandle& file, int64_t begin, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) file.read(begin, count * static_cast<int64_t>(sizeof(T)), values.data());
  return values;
}

/// Returns offsets of documents in tokens, from the lengths of sequences and the first sequence of each document.
std::vector<uint64_t> megatron_documents(const std::string& path, const std::vector<int32_t>& lengths,
                                         const std::vector<int64_t>& pointers, const std::vector<int64_t>& borders,
                                         int64_t width) {
  std::vector<int64_t> offsets = {0};
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) refuse(path, fmt::format("sequence {} has the invalid length {}", i, lengths[i]));
    if (pointers[i] != offsets.back() * width) {
      refuse(path, fmt::format("sequence {} begins at byte {}, but the one before it ends at {}; only contiguous "
                               "sequences are supported",
                               i, pointers[i], offsets.back() * width));
    }
    offsets.push_back(offsets.back() + lengths[i]);
  }
  std::vector<uint64_t> documents;
  int64_t previous = 0;
  for (size_t i = 0; i < borders.size(); ++i) {
    const int64_t border = borders[i];
    if (border < previous || border >= static_cast<int64_t>(offsets.size()) || (i == 0 && border != 0)) {
      refuse(path, fmt::format("document {} begins at the invalid sequence {}", i, border));
    }
    documents.push_back(static_cast<uint64_t>(offsets[static_cast<size_t>(border)]));
    previous = border;
  }
  if (previous + 1 != static_cast<int64_t>(offsets.size()))
    refuse(path, "the last document does not end with the file");
  return documents;
}

Source open_megatron(const std::string& input) {
  const std::string name = megatron_name(input), path = name + ".idx";
  const FileHandle index = FileHandle::open_to_read(path);
  std::array<char, megatron_header> header{};
  if (index.size() < megatron_header) refuse(path, "too short for an index of Megatron");
  index.read(0, megatron_header, header.data());
  if (std::string_view(header.data(), megatron_magic.size()) != megatron_magic) {
    refuse(path, "not an index of Megatron: it does not begin with MMIDIDX");
  }
  const auto version = at<uint64_t>(header.data() + 9, 0), all_sequences = at<uint64_t>(header.data() + 18, 0);
  const auto all_documents = at<uint64_t>(header.data() + 26, 0);  // one more than there are documents
  const auto code = at<uint8_t>(header.data() + 17, 0);
  if (version != 1) refuse(path, fmt::format("version {} is not supported, only 1", version));
  const std::optional<IdType> type = megatron_type(code);
  if (!type)
    refuse(path, fmt::format("ids of type {} are not supported (uint8, int16, int32, int64, uint16 are)", code));
  const auto size = static_cast<uint64_t>(index.size());
  if (all_sequences > size / 12 || all_documents > size / 8 ||
      megatron_header + all_sequences * 12 + all_documents * 8 != size) {
    refuse(path, fmt::format("it has {} bytes, but its header declares {} sequences and {} documents", size,
                             all_sequences, all_documents));
  }
  const auto sequences = static_cast<int64_t>(all_sequences);
  const auto lengths = read_array<int32_t>(index, megatron_header, sequences);
  const auto pointers = read_array<int64_t>(index, megatron_header + 4 * sequences, sequences);
  const auto borders =
      read_array<int64_t>(index, megatron_header + 12 * sequences, static_cast<int64_t>(all_documents));
  Source s;
  FileHandle file = FileHandle::open_to_read(name + ".bin");
  s.type = *type;
  s.documents = megatron_documents(path, lengths, pointers, borders, width_of(s.type));
  const int64_t tokens = s.documents.empty() ? 0 : static_cast<int64_t>(s.documents.back());
  if (file.size() != tokens * width_of(s.type)) {
    refuse(name + ".bin", fmt::format("it has {} bytes, but {} declares {} tokens", file.size(), path, tokens));
  }
  add_shard(s, std::move(file), 0, tokens);
  return s;
}

Source open_source(ForeignTokens format, const std::vector<std::string>& inputs) {
  switch (format) {
    case ForeignTokens::nanogpt:
      return open_nanogpt(inputs);
    case ForeignTokens::llmc:
      return open_llmc(inputs);
    case ForeignTokens::megatron:
      return open_megatron(inputs.front());
  }
  throw Error("unknown format");
}

/// Calls use(first, ids) for all ids, block by block, checked against the vocabulary.
template <class Use>
void for_ids(const Source& s, int64_t vocabulary, const Use& use) {
  std::vector<char> bytes;
  std::vector<int32_t> ids;
  const int64_t width = width_of(s.type);
  int64_t before = 0;  // tokens of earlier shards
  for (const Shard& shard : s.shards) {
    for (int64_t first = 0; first < shard.tokens; first += ids_per_read) {
      const int64_t count = std::min(ids_per_read, shard.tokens - first);
      bytes.resize(static_cast<size_t>(count * width));
      ids.resize(static_cast<size_t>(count));
      shard.file.read(shard.begin + first * width, count * width, bytes.data());
      for (int64_t i = 0; i < count; ++i) {
        const int64_t id = id_at(s.type, bytes.data(), i);
        if (id < 0 || id >= vocabulary) {
          refuse(shard.file.path(), fmt::format("byte {}: token {} has the id {}, outside the vocabulary of {}; give "
                                                "the --tokenizer that made it, or its --vocab-size",
                                                shard.begin + (first + i) * width, first + i, id, vocabulary));
        }
        ids[static_cast<size_t>(i)] = static_cast<int32_t>(id);
      }
      use(before + first, std::span<const int32_t>(ids));
    }
    before += shard.tokens;
  }
}

/// Vocabulary and EOS come from the tokenizer, otherwise from the options, otherwise from the format.
TokenFileInfo info_of(const Source& s, const TokenImport& request) {
  TokenFileInfo info;
  info.path = request.output;
  info.tokens = s.tokens;
  info.command = request.command;
  int64_t eos = request.eos_id >= 0 ? request.eos_id : s.eos_id;
  if (request.tokenizer != nullptr) {
    info.vocabulary_size = request.tokenizer->vocabulary_size();
    eos = request.tokenizer->eos_id();
    info.tokenizer = request.tokenizer->serialized();
    info.tokenizer_hash = short_hash(info.tokenizer);
  } else {
    info.vocabulary_size = request.vocabulary_size > 0 ? request.vocabulary_size : s.vocabulary_size;
    if (info.vocabulary_size == 0) {
      throw UserError(
          ExitCode::command_line,
          request.inputs.front() + ": the format does not record the vocabulary; give --tokenizer or --vocab-size");
    }
  }
  if (eos < 0 && s.documents.empty()) {
    throw UserError(ExitCode::command_line, request.inputs.front() +
                                                ": the end of documents is unknown; give --tokenizer or the id that "
                                                "ends them, --eos-id");
  }
  if (eos >= info.vocabulary_size) {
    throw UserError(ExitCode::command_line,
                    fmt::format("--eos-id: {} is outside the vocabulary of {}; give a --vocab-size that includes it",
                                eos, info.vocabulary_size));
  }
  info.eos_id = static_cast<int32_t>(eos);
  return info;
}

/// Returns offsets of documents that end with EOS, which the last one may lack.
std::vector<uint64_t> documents_by_eos(const Source& s, const TokenFileInfo& info) {
  std::vector<uint64_t> documents = {0};
  for_ids(s, info.vocabulary_size, [&](int64_t first, std::span<const int32_t> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == info.eos_id) documents.push_back(static_cast<uint64_t>(first) + i + 1);
    }
  });
  if (documents.back() != static_cast<uint64_t>(s.tokens)) documents.push_back(static_cast<uint64_t>(s.tokens));
  return documents;
}

/// Returns the token that begins documents: the special id of the tokenizer that the first document begins with,
/// otherwise the format's if the tokenizer has it.
int32_t leading_delimiter(const Source& s, const TokenImport& request, const TokenFileInfo& info) {
  if (request.tokenizer == nullptr) {
    const bool own = s.delimiter >= 0 && request.eos_id < 0 && s.delimiter < info.vocabulary_size;
    return own ? static_cast<int32_t>(s.delimiter) : info.eos_id;
  }
  std::array<char, 8> bytes{};
  const Shard& shard = s.shards.front();
  shard.file.read_some(shard.begin, width_of(s.type), bytes.data());
  const int64_t first = id_at(s.type, bytes.data(), 0);
  for (const int64_t id : {int64_t{info.eos_id}, int64_t{request.tokenizer->bos_id()}}) {
    if (first == id) return static_cast<int32_t>(id);
  }
  const int64_t usual = s.delimiter >= 0 ? s.delimiter : s.eos_id;
  return usual < info.vocabulary_size ? static_cast<int32_t>(usual) : info.eos_id;
}

/// Calls use(first, ids) for all ids as in the token file.
template <class Use>
DelimiterMover for_moved_ids(const Source& s, int32_t delimiter, const TokenFileInfo& info, const Use& use) {
  DelimiterMover mover(delimiter, info.eos_id);
  std::vector<int32_t> out;
  int64_t done = 0;
  const auto hand_over = [&] {
    use(done, std::span<const int32_t>(out));
    done += static_cast<int64_t>(out.size());
    out.clear();
  };
  for_ids(s, info.vocabulary_size, [&](int64_t, std::span<const int32_t> ids) {
    mover.add(ids, out);
    hand_over();
  });
  mover.close(out);
  hand_over();
  return mover;
}

}  // namespace

bool is_foreign_tokens(const std::string& path, ForeignTokens& format) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(megatron_name(path) + ".idx", ignored)) {
    format = ForeignTokens::megatron;
    return true;
  }
  const FileHandle file = FileHandle::open_to_read(path);
  int32_t magic = 0;
  format = ForeignTokens::llmc;
  return file.read_some(0, sizeof(magic), &magic) == sizeof(magic) && (magic == llmc_gpt2 || magic == llmc_llama3);
}

void import_tokens(ForeignTokens format, const TokenImport& request, const ProgressReport& report) {
  Source s = open_source(format, request.inputs);
  const std::string& name = s.shards.front().file.path();
  if (s.tokens == 0) refuse(name, "it has no token");
  TokenFileInfo info = info_of(s, request);
  const int32_t delimiter = s.delimiter_leads ? leading_delimiter(s, request, info) : -1;
  if (s.delimiter_leads) {
    const DelimiterMover mover = for_moved_ids(s, delimiter, info, [](int64_t, std::span<const int32_t>) {});
    s.documents = mover.offsets();
    info.skipped_documents = mover.empty();
    info.tokens = static_cast<int64_t>(s.documents.back());
    if (!mover.found_delimiter()) {
      report(
          fmt::format("{}: the document delimiter {} never occurs, so the file is one document; give --eos-id (or "
                      "--tokenizer) if its documents begin with another id",
                      name, delimiter));
    }
    if (info.tokens == 0) refuse(name, fmt::format("it has no document, only the delimiter {}", delimiter));
  } else {
    if (s.documents.empty()) s.documents = documents_by_eos(s, info);
    const size_t all = s.documents.size();
    s.documents.erase(std::unique(s.documents.begin(), s.documents.end()), s.documents.end());  // removes empty ones
    info.skipped_documents = static_cast<int64_t>(all - s.documents.size());
  }
  info.documents = static_cast<int64_t>(s.documents.size()) - 1;
  for (const Shard& shard : s.shards) {
    const std::string& path = shard.file.path();
    info.sources.push_back(fmt::format("{} {}", std::filesystem::path(path).filename().string(),
                                       file_digest(path, *make_local_communicator())));
  }
  TokenFileWriter file(request.output, info, s.documents);
  const TokenRegionWriter writer(file.target());
  const auto progress = percent_report(report, "importing");
  const auto write = [&](int64_t first, std::span<const int32_t> ids) {
    writer.write(first, ids);
    progress(static_cast<double>(first) / static_cast<double>(info.tokens));
  };
  if (s.delimiter_leads) {
    for_moved_ids(s, delimiter, info, write);
  } else {
    for_ids(s, info.vocabulary_size, write);
  }
  writer.sync();
  file.publish();
}

}  // namespace llmtrain
