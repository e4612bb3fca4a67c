// Opens a token file from an untrusted source: every link must be a hard one, every dataset plain bytes inside this
// file, every size within the file, before anything is allocated.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/hdf5_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/files/opened_files.hpp"
#include "data/files/token_format.hpp"

namespace llmtrain::token_format {
namespace {

constexpr const char* remedy = "; make it again with `llmtool prepare`";

class LayoutReader {
 public:
  explicit LayoutReader(const std::string& path) : path_(path) {
    file_bytes_ = FileHandle::open_to_read(path).size();
    H5PLset_loading_state(0);  // a filter that the file names must not load code
    const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fapl_sec2(access.get());
    H5Pset_file_locking(access.get(), false, true);  // several cluster file systems have no locks
    ++opened_files();
    file_ = Hdf5Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
    if (!file_.valid()) refuse("not an HDF5 file, or cut off or damaged");
    const Hdf5Handle creation(H5Fget_create_plist(file_.get()), H5Pclose);
    hsize_t user_block = 0;
    if (!creation.valid() || H5Pget_userblock(creation.get(), &user_block) < 0 || user_block != 0) {
      refuse("it has a user block");
    }
  }

  Layout read() {
    Layout layout;
    TokenFileInfo& info = layout.info;
    info.path = path_;
    const int64_t file_version = integer(attribute_version, 1, std::numeric_limits<int64_t>::max());
    if (file_version != version)
      refuse(fmt::format("it has format version {}; this program reads {}", file_version, version));
    info.vocabulary_size = integer(attribute_vocabulary, 1, max_vocabulary);
    info.eos_id = static_cast<int32_t>(integer(attribute_eos, -1, info.vocabulary_size - 1));
    info.characters = optional_count(attribute_characters);
    info.bytes = optional_count(attribute_bytes);
    info.skipped_documents = optional_count(attribute_skipped);
    info.rows = {optional_count(attribute_rows),
                 optional_count(attribute_untrained),
                 optional_count(attribute_duplicates),
                 optional_count(attribute_borders),
                 optional_count(attribute_without_stop),
                 optional_count(attribute_equal),
                 optional_count(attribute_empty),
                 joined(strings(attribute_first_equal)),
                 joined(strings(attribute_first_empty)),
                 optional_count(attribute_irregular),
                 joined(strings(attribute_first_irregular))};
    if (H5Aexists(file_.get(), attribute_group) > 0) info.group = integer(attribute_group, 1, 2);
    info.column = joined(strings(attribute_column));
    info.tokenizer = joined(strings(attribute_tokenizer));
    info.tokenizer_hash = joined(strings(attribute_tokenizer_hash));
    info.command = joined(strings(attribute_command));
    info.sources = strings(attribute_sources);

    layout.tokens = dataset(tokens, {2, 4});
    layout.documents = dataset(documents, {8});
    if (H5Lexists(file_.get(), mask, H5P_DEFAULT) > 0) layout.mask = dataset(mask, {1});
    info.tokens = layout.tokens.elements;
    info.documents = layout.documents.elements - 1;
    info.has_mask = layout.mask.elements > 0;
    if (info.tokens < 1) refuse("it has no tokens");
    if (info.documents < 1 || info.documents > info.tokens) {
      refuse(fmt::format("/documents has {} entries for {} tokens", layout.documents.elements, info.tokens));
    }
    if (info.has_mask && layout.mask.elements != info.tokens) {
      refuse(fmt::format("/mask has {} entries for {} tokens", layout.mask.elements, info.tokens));
    }
    read_preferences(layout);
    return layout;
  }

 private:
  void read_preferences(Layout& layout) const {
    const TokenFileInfo& info = layout.info;
    const bool known =
        info.column.empty() || (info.column == "margin" && info.group == 2) ||
        ((info.column == "label" || info.has_prompts() || info.has_difficulties() || info.has_labels()) &&
         info.group == 1);
    if (!known) refuse(fmt::format("attribute column is {} with group {}", printable(info.column), info.group));
    if (info.documents % info.group != 0) {
      refuse(fmt::format("{} documents are not whole groups of {}", info.documents, info.group));
    }
    const bool has_values = H5Lexists(file_.get(), values, H5P_DEFAULT) > 0;
    if (info.has_prompts()) read_rows(layout);
    if (!info.has_values()) {
      if (has_values) refuse("it has /values, and no attribute column");
      return;
    }
    layout.values = dataset(values, {4}, H5T_FLOAT);
    const int64_t places = info.has_token_labels() ? info.tokens : info.documents;
    const int64_t width = info.has_labels() && !info.has_token_labels() ? layout.values.elements / places : 1;
    if (width < 1 || layout.values.elements != width * places) {
      refuse(fmt::format("/values has {} entries for {} {}", layout.values.elements, places,
                         info.has_token_labels() ? "tokens" : "documents"));
    }
    layout.info.width = width;
  }

  void read_rows(Layout& layout) const {
    layout.rows = dataset(rows, {1});
    layout.row_offsets = dataset(row_offsets, {8});
    if (layout.row_offsets.elements != layout.info.documents + 1) {
      refuse(fmt::format("/row_offsets has {} entries for {} documents", layout.row_offsets.elements,
                         layout.info.documents));
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UserError(ExitCode::bad_content, path_ + ": not a usable token file: " + why + remedy);
  }

  Region dataset(const char* name, std::initializer_list<int> widths, H5T_class_t kind = H5T_INTEGER) const {
    H5L_info_t link{};
    if (H5Lexists(file_.get(), name, H5P_DEFAULT) <= 0 || H5Lget_info(file_.get(), name, &link, H5P_DEFAULT) < 0) {
      refuse(fmt::format("/{} is missing", name));
    }
    if (link.type != H5L_TYPE_HARD) refuse(fmt::format("/{} is a soft, external or user-defined link", name));
    const Hdf5Handle object(H5Oopen(file_.get(), name, H5P_DEFAULT), H5Oclose);
    if (!object.valid() || H5Iget_type(object.get()) != H5I_DATASET) refuse(fmt::format("/{} is not a dataset", name));
    check_storage(name, object.get());

    const Hdf5Handle type(H5Dget_type(object.get()), H5Tclose);
    const size_t width = type.valid() ? H5Tget_size(type.get()) : 0;
    bool fits =
        type.valid() && H5Tget_class(type.get()) == kind &&
        (kind == H5T_INTEGER ? H5Tget_sign(type.get()) == H5T_SGN_NONE : H5Tequal(type.get(), H5T_IEEE_F32LE) > 0) &&
        (width == 1 || H5Tget_order(type.get()) == H5T_ORDER_LE) && H5Tget_precision(type.get()) == 8 * width;
    fits = fits && std::ranges::find(widths, static_cast<int>(width)) != widths.end();
    if (!fits) {
      refuse(fmt::format("/{} must have {} of the right size", name,
                         kind == H5T_INTEGER ? "unsigned little-endian integers" : "little-endian IEEE numbers"));
    }

    const Hdf5Handle space(H5Dget_space(object.get()), H5Sclose);
    hsize_t extent = 0;
    if (!space.valid() || H5Sget_simple_extent_ndims(space.get()) != 1 ||
        H5Sget_simple_extent_dims(space.get(), &extent, nullptr) != 1) {
      refuse(fmt::format("/{} is not one-dimensional", name));
    }
    const uint64_t limit = static_cast<uint64_t>(file_bytes_);
    const haddr_t offset = H5Dget_offset(object.get());
    if (offset == HADDR_UNDEF || extent > limit / width || offset > limit - extent * width) {
      refuse(fmt::format("/{} declares {} entries, more than fit in {} bytes of file", name, extent, file_bytes_));
    }
    return {static_cast<int64_t>(offset), static_cast<int64_t>(extent), static_cast<int>(width)};
  }

  void check_storage(const char* name, hid_t object) const {
    const Hdf5Handle creation(H5Dget_create_plist(object), H5Pclose);
    if (!creation.valid() || H5Pget_layout(creation.get()) != H5D_CONTIGUOUS) {
      refuse(fmt::format("/{} is chunked, compact or virtual; it must be contiguous", name));
    }
    if (H5Pget_external_count(creation.get()) != 0) refuse(fmt::format("/{} keeps its data in other files", name));
    if (H5Pget_nfilters(creation.get()) != 0) refuse(fmt::format("/{} is filtered", name));
  }

  Hdf5Handle attribute(const char* name) const {
    if (H5Aexists(file_.get(), name) <= 0) return {};
    Hdf5Handle handle(H5Aopen(file_.get(), name, H5P_DEFAULT), H5Aclose);
    if (!handle.valid()) refuse(fmt::format("attribute {} cannot be read", name));
    return handle;
  }

  /// Number of entries of an attribute of at most one dimension; the file bounds it, since attributes are stored as
  /// they are.
  int64_t entries(const char* name, hid_t handle, size_t width) const {
    const Hdf5Handle space(H5Aget_space(handle), H5Sclose);
    const int dimensions = space.valid() ? H5Sget_simple_extent_ndims(space.get()) : -1;
    const hssize_t count = space.valid() ? H5Sget_simple_extent_npoints(space.get()) : -1;
    const int64_t limit = std::min(file_bytes_, max_attribute);
    if (dimensions < 0 || dimensions > 1 || count < 0 || width == 0 || width > static_cast<size_t>(limit) ||
        count > limit / static_cast<int64_t>(width)) {
      refuse(fmt::format("attribute {} has an invalid size", name));
    }
    return count;
  }

  int64_t integer(const char* name, int64_t low, int64_t high) const {
    const Hdf5Handle handle = attribute(name);
    if (!handle.valid()) refuse(fmt::format("attribute {} is missing", name));
    const Hdf5Handle type(H5Aget_type(handle.get()), H5Tclose);
    int64_t value = 0;
    if (!type.valid() || H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_size(type.get()) > 8 ||
        entries(name, handle.get(), H5Tget_size(type.get())) != 1 ||
        H5Aread(handle.get(), H5T_NATIVE_INT64, &value) < 0) {
      refuse(fmt::format("attribute {} is not an integer", name));
    }
    if (value < low || value > high) refuse(fmt::format("attribute {} = {} is out of range", name, value));
    return value;
  }

  int64_t optional_count(const char* name) const {
    return H5Aexists(file_.get(), name) > 0 ? integer(name, 0, std::numeric_limits<int64_t>::max()) : 0;
  }

  /// Reads fixed-length strings; none if the attribute is missing.
  std::vector<std::string> strings(const char* name) const {
    std::vector<std::string> result;
    const Hdf5Handle handle = attribute(name);
    if (!handle.valid()) return result;
    const Hdf5Handle type(H5Aget_type(handle.get()), H5Tclose);
    if (!type.valid() || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) {
      refuse(fmt::format("attribute {} must be a string of fixed length", name));
    }
    const size_t width = H5Tget_size(type.get());
    const size_t count = static_cast<size_t>(entries(name, handle.get(), width));
    std::string data(width * count, '\0');
    if (H5Aread(handle.get(), type.get(), data.data()) < 0) refuse(fmt::format("attribute {} cannot be read", name));
    for (size_t i = 0; i < count; ++i) {
      const std::string_view item = std::string_view(data).substr(i * width, width);
      result.emplace_back(item.substr(0, std::min(item.find('\0'), width)));
    }
    return result;
  }

  static std::string joined(const std::vector<std::string>& parts) {
    std::string all;
    for (const std::string& part : parts) all += part;
    return all;
  }

  std::string path_;
  int64_t file_bytes_ = 0;
  Hdf5Handle file_;
};

}  // namespace

Layout read_layout(const std::string& path) {
  const Hdf5Silence silence;
  return LayoutReader(path).read();
}

}  // namespace llmtrain::token_format
