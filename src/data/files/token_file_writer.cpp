#include "data/files/token_file_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"
#include "core/files/opened_files.hpp"
#include "core/files/whole_file.hpp"

namespace llmtrain {
namespace {

constexpr size_t written_tokens = size_t{1} << 16;

/// The bytes do not depend on the time or on the number of processes: no times are stored.
class TokenFileCreator {
 public:
  explicit TokenFileCreator(const std::string& path) : path_(path) {
    const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_obj_track_times(creation.get(), false);
    H5Pset_attr_phase_change(creation.get(), 0, 0);  // attributes beyond 64 KiB: tokenizers, long lists of sources
    const Hdf5Handle access = hdf5_write_access(H5F_LIBVER_V18);
    H5Pset_fapl_sec2(access.get());
    H5Pset_file_locking(access.get(), false, true);
    FileHandle::create(path);  // sets the permissions
    ++opened_files();
    file_ = Hdf5Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
    if (!file_.valid()) fail_hdf5_write(path, "the file");
  }

  token_format::Region dataset(const char* name, hid_t type, int64_t elements) {
    const hsize_t extent = static_cast<hsize_t>(elements);
    const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(creation.get(), false);
    H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
    const Hdf5Handle data(H5Dcreate2(file_.get(), name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                          H5Dclose);
    const haddr_t offset = data.valid() ? H5Dget_offset(data.get()) : HADDR_UNDEF;
    if (offset == HADDR_UNDEF) fail_hdf5_write(path_, name);
    return {static_cast<int64_t>(offset), elements, static_cast<int>(H5Tget_size(type))};
  }

  void attribute(const char* name, int64_t value) {
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    store(name, H5T_STD_I64LE, H5T_NATIVE_INT64, space.get(), &value);
  }

  void attribute(const char* name, const std::string& value) {
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle type = string_type(value.size());
    std::string padded = value;
    padded.resize(H5Tget_size(type.get()), '\0');
    store(name, type.get(), type.get(), space.get(), padded.data());
  }

  void attribute(const char* name, const std::vector<std::string>& values) {
    size_t width = 0;
    for (const std::string& value : values) width = std::max(width, value.size());
    const Hdf5Handle type = string_type(width);
    width = H5Tget_size(type.get());
    const hsize_t extent = values.size();
    const Hdf5Handle space(values.empty() ? H5Screate(H5S_NULL) : H5Screate_simple(1, &extent, nullptr), H5Sclose);
    std::string padded(width * values.size(), '\0');
    for (size_t i = 0; i < values.size(); ++i) values[i].copy(padded.data() + i * width, values[i].size());
    if (!values.empty()) store(name, type.get(), type.get(), space.get(), padded.data());
  }

  void close() {
    if (!file_.reset()) fail_hdf5_write(path_, "the file");
  }

 private:
  static Hdf5Handle string_type(size_t bytes) {
    Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), std::max<size_t>(1, bytes));
    H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    return type;
  }

  void store(const char* name, hid_t stored, hid_t given, hid_t space, const void* value) {
    const Hdf5Handle handle(H5Acreate2(file_.get(), name, stored, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (!handle.valid() || H5Awrite(handle.get(), given, value) < 0) fail_hdf5_write(path_, name);
  }

  std::string path_;
  Hdf5Handle file_;
};

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& path, const TokenFileInfo& info,
                                 std::span<const uint64_t> documents, std::span<const float> values,
                                 std::span<const uint64_t> row_offsets)
    : path_(path) {
  namespace format = token_format;
  LLMTRAIN_CHECK(documents.size() >= 2 && documents.back() == static_cast<uint64_t>(info.tokens),
                 "documents must cover the tokens");
  const size_t places = info.has_token_labels() ? static_cast<size_t>(info.tokens) : documents.size() - 1;
  LLMTRAIN_CHECK(values.size() == (info.has_values() ? places * static_cast<size_t>(info.width) : 0),
                 "a column has its values for each document");
  LLMTRAIN_CHECK(row_offsets.size() == (info.has_prompts() ? documents.size() : 0), "a prompt has a row");
  target_.path = temporary_path(path);
  token_format::Region offsets, column, rows;
  try {
    const Hdf5Silence silence;
    TokenFileCreator file(target_.path);
    file.attribute(format::attribute_version, format::version);
    file.attribute(format::attribute_vocabulary, info.vocabulary_size);
    file.attribute(format::attribute_eos, int64_t{info.eos_id});
    file.attribute(format::attribute_characters, info.characters);
    file.attribute(format::attribute_bytes, info.bytes);
    file.attribute(format::attribute_skipped, info.skipped_documents);
    if (info.rows.used > 0) {
      file.attribute(format::attribute_rows, info.rows.used);
      file.attribute(format::attribute_untrained, info.rows.untrained);
      file.attribute(format::attribute_duplicates, info.rows.duplicates);
      file.attribute(format::attribute_borders, info.rows.merged_borders);
      file.attribute(format::attribute_without_stop, info.rows.without_stop);
    }
    if (info.rows.irregular > 0) {
      file.attribute(format::attribute_irregular, info.rows.irregular);
      file.attribute(format::attribute_first_irregular, info.rows.first_irregular);
    }
    if (info.has_groups() || info.has_values()) {
      file.attribute(format::attribute_group, info.group);
      file.attribute(format::attribute_column, info.column);
      file.attribute(format::attribute_equal, info.rows.equal);
      file.attribute(format::attribute_empty, info.rows.empty);
      file.attribute(format::attribute_first_equal, info.rows.first_equal);
      file.attribute(format::attribute_first_empty, info.rows.first_empty);
    }
    file.attribute(format::attribute_tokenizer, info.tokenizer);
    file.attribute(format::attribute_tokenizer_hash, info.tokenizer_hash);
    file.attribute(format::attribute_command, info.command);
    file.attribute(format::attribute_sources, info.sources);
    const bool narrow = format::id_width(info.vocabulary_size) == 2;
    offsets = file.dataset(format::documents, H5T_STD_U64LE, static_cast<int64_t>(documents.size()));
    target_.tokens = file.dataset(format::tokens, narrow ? H5T_STD_U16LE : H5T_STD_U32LE, info.tokens);
    if (info.has_mask) target_.mask = file.dataset(format::mask, H5T_STD_U8LE, info.tokens);
    if (!values.empty()) {
      column = file.dataset(format::values, H5T_IEEE_F32LE, static_cast<int64_t>(values.size()));
    }
    if (!row_offsets.empty()) {
      rows = file.dataset(format::row_offsets, H5T_STD_U64LE, static_cast<int64_t>(row_offsets.size()));
      target_.rows = file.dataset(format::rows, H5T_STD_U8LE, static_cast<int64_t>(row_offsets.back()));
    }
    file.close();
    const FileHandle handle = FileHandle::open_to_write(target_.path);
    handle.write(offsets.offset, offsets.elements * 8, documents.data());
    if (!values.empty()) handle.write(column.offset, column.elements * 4, values.data());
    if (!row_offsets.empty()) handle.write(rows.offset, rows.elements * 8, row_offsets.data());
  } catch (...) {
    ::unlink(target_.path.c_str());
    throw;
  }
}

TokenFileWriter::~TokenFileWriter() {
  if (!published_) ::unlink(target_.path.c_str());
}

void TokenFileWriter::publish() {
  FileHandle::open_to_write(target_.path).sync();
  publish_file(target_.path, path_);
  published_ = true;
}

void TokenRegionWriter::write(int64_t begin, std::span<const int32_t> ids) const {
  const int64_t count = static_cast<int64_t>(ids.size());
  LLMTRAIN_CHECK(begin >= 0 && begin <= target_.tokens.elements - count, "tokens outside the file");
  if (target_.tokens.width == 4) {
    file_.write(target_.tokens.offset + begin * 4, count * 4, ids.data());
    return;
  }
  std::vector<uint16_t> narrow;
  for (size_t done = 0; done < ids.size(); done += written_tokens) {
    const auto piece = ids.subspan(done, std::min(written_tokens, ids.size() - done));
    narrow.assign(piece.begin(), piece.end());
    file_.write(target_.tokens.offset + (begin + static_cast<int64_t>(done)) * 2,
                static_cast<int64_t>(piece.size()) * 2, narrow.data());
  }
}

void TokenRegionWriter::write_rows(int64_t begin, std::string_view text) const {
  const int64_t count = std::ssize(text);
  LLMTRAIN_CHECK(begin >= 0 && begin <= target_.rows.elements - count, "rows outside the file");
  file_.write(target_.rows.offset + begin, count, text.data());
}

void TokenRegionWriter::write_mask(int64_t begin, std::span<const uint8_t> mask) const {
  const int64_t count = static_cast<int64_t>(mask.size());
  LLMTRAIN_CHECK(begin >= 0 && begin <= target_.mask.elements - count, "mask outside the file");
  file_.write(target_.mask.offset + begin, count, mask.data());
}

}  // namespace llmtrain
