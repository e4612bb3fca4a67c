#include "data/files/unpack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/compressed_file.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/input_kind.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece = int64_t{1} << 20;

/// Copies all of a text; returns its bytes.
int64_t copy_text(TextReader& from, const FileHandle& to) {
  std::string buffer(static_cast<size_t>(piece), '\0');
  int64_t written = 0;
  for (int64_t n = from.read(buffer.data(), piece); n > 0; n = from.read(buffer.data(), piece)) {
    to.write(written, n, buffer.data());
    written += n;
  }
  return written;
}

void check_unchanged(const InputFile& input) {
  const FileHandle file = FileHandle::open_to_read(input.path);
  if (file.size() == input.bytes && (input.table == TableKind::none || file.modified() == input.modified)) return;
  throw UserError(ExitCode::io, input.path + ": the file was changed during reading; start again");
}

/// Groups of rows [begin, end) of a table; all of a compressed file, whose text one thread writes to its place.
struct Section {
  size_t file;
  int64_t begin, end;
  bool whole;
};

/// Everything that determines the text.
std::string key_of(const InputFile& file, const std::string& digest) {
  constexpr int version = 1;  // increased when the same table gives other lines
  if (file.table == TableKind::none) return digest;
  return fmt::format("{} table {} {} {} {}", digest, version, static_cast<int>(file.table),
                     nlohmann::json(file.columns.read).dump(), nlohmann::json(file.columns.values).dump());
}

class Unpacking {
 public:
  Unpacking(const std::vector<const InputFile*>& files, int64_t limit, Communicator& communicator)
      : files_(files), limit_(limit), communicator_(communicator) {
    std::vector<int64_t> groups(files.size(), -1);  // of tables
    on_root(communicator, [&] {
      for (size_t f = 0; f < files.size(); ++f) {
        if (files[f]->table == TableKind::none) continue;
        groups[f] = open_table(files[f]->path, files[f]->table, files[f]->columns)->groups();
      }
    });
    communicator.broadcast(groups.data(), static_cast<int64_t>(groups.size() * sizeof(int64_t)));
    for (size_t f = 0; f < files.size(); ++f) {
      const int64_t sections = std::clamp<int64_t>(groups[f], 1, most_sections);
      for (int64_t s = 0; s < sections; ++s) {
        sections_.push_back({f, groups[f] * s / sections, groups[f] * (s + 1) / sections, sections == 1});
      }
    }
  }

  ~Unpacking() {
    for (const std::string& part : parts_) remove(part);
  }
  Unpacking(const Unpacking&) = delete;
  Unpacking& operator=(const Unpacking&) = delete;

  void run(const ProgressReport& report) {
    const ItemRange own = own_items(static_cast<int64_t>(sections_.size()), communicator_);
    parts_.resize(static_cast<size_t>(own.end - own.begin));
    std::vector<int64_t> sizes;
    share_work<int64_t>(
        communicator_, own,
        [&](int64_t item) {
          return unpack(sections_[static_cast<size_t>(item)], parts_[static_cast<size_t>(item - own.begin)]);
        },
        [&](int64_t, int64_t bytes) { sizes.push_back(bytes); }, percent_report(report, "unpacking"));
    const std::string mine(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
    std::string all;
    for (const std::string& theirs : communicator_.gather_all(mine)) all += theirs;
    std::vector<int64_t> all_sizes(all.size() / sizeof(int64_t));
    std::copy(all.begin(), all.end(), reinterpret_cast<char*>(all_sizes.data()));
    for (size_t first = 0; first < sections_.size();) {
      size_t last = first;
      while (last < sections_.size() && sections_[last].file == sections_[first].file) ++last;
      if (!sections_[first].whole) join(first, last, all_sizes, own);
      first = last;
    }
  }

 private:
  static constexpr int64_t most_sections = 256;  // of a file

  static void remove(const std::string& part) {
    std::error_code ignored;
    if (!part.empty()) std::filesystem::remove(part, ignored);
  }

  /// Writes a section to the file's place, or to a new file that `part` names. Returns its bytes.
  int64_t unpack(const Section& section, std::string& part) const {
    const InputFile& input = *files_[section.file];
    const FileHandle from = FileHandle::open_to_read(input.path);
    const auto reader =
        input.table == TableKind::none
            ? open_packed(from, input, limit_)
            : open_table(input.path, input.table, input.columns)->read(section.begin, section.end, limit_);
    int64_t bytes = 0;
    if (section.whole) {
      WholeFile to(input.content_path);
      bytes = copy_text(*reader, to.file());
      check_unchanged(input);
      to.publish();
    } else {
      part = temporary_path(input.content_path);
      bytes = copy_text(*reader, FileHandle::create(part));
      check_unchanged(input);
    }
    return bytes;
  }

  /// Joins the parts of sections [first, last): every rank writes its own.
  void join(size_t first, size_t last, const std::vector<int64_t>& sizes, ItemRange own) {
    const InputFile& input = *files_[sections_[first].file];
    std::string path;
    on_root(communicator_, [&] {
      int64_t bytes = 0;
      for (size_t s = first; s < last; ++s) bytes += sizes[s];
      if (bytes > limit_) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: its rows are {} bytes of JSON, and data.unpacked_limit is {}; raise it if the "
                                    "file is right",
                                    input.path, bytes, limit_));
      }
      path = temporary_path(input.content_path);
      parts_.push_back(path);  // removed with them unless it is published
      FileHandle::create(path);
    });
    communicator_.broadcast(path);
    throw_on_all_ranks(communicator_, [&] {
      const FileHandle to = FileHandle::open_to_write(path);
      std::string buffer;
      int64_t offset = 0;
      for (size_t s = first; s < last; offset += sizes[s++]) {
        const auto item = static_cast<int64_t>(s);
        if (item < own.begin || item >= own.end) continue;
        std::string& path_of_part = parts_[static_cast<size_t>(item - own.begin)];
        const FileHandle part = FileHandle::open_to_read(path_of_part);
        for (int64_t at = 0; at < sizes[s]; at += piece) {
          buffer.resize(static_cast<size_t>(std::min(piece, sizes[s] - at)));
          part.read(at, std::ssize(buffer), buffer.data());
          to.write(offset + at, std::ssize(buffer), buffer.data());
        }
        remove(std::exchange(path_of_part, {}));
      }
      to.sync();
    });
    on_root(communicator_, [&] { publish_file(path, input.content_path); });
  }

  const std::vector<const InputFile*>& files_;
  int64_t limit_;
  Communicator& communicator_;
  std::vector<Section> sections_;
  std::vector<std::string> parts_;  // temporary files of this rank's sections
};

}  // namespace

void unpack_files(std::vector<InputFile*> files, const std::string& folder, int64_t limit, Communicator& communicator,
                  const ProgressReport& report) {
  std::erase_if(files, [](const InputFile* file) { return !file->is_packed(); });
  if (files.empty()) return;
  std::vector<bool> missing(files.size());
  for (size_t f = 0; f < files.size(); ++f) {
    files[f]->content_path = fmt::format("{}/unpacked-{}.txt", folder,
                                         short_hash(key_of(*files[f], file_digest(files[f]->path, communicator))));
    const StoredFile stored = check_digest(files[f]->content_path, communicator);
    missing[f] = stored != StoredFile::whole;
    if (stored == StoredFile::damaged && communicator.rank() == 0 && report) {
      report(files[f]->content_path + ": the unpacked text in the cache is damaged; unpacking it again");
    }
  }
  std::vector<const InputFile*> work;
  int64_t bytes = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    const auto same = [&](const InputFile* other) { return other->content_path == files[f]->content_path; };
    if (!missing[f] || std::ranges::any_of(work, same)) continue;
    work.push_back(files[f]);
    bytes += files[f]->bytes;
  }
  if (!work.empty()) throw_on_all_ranks(communicator, [&] { require_writable_cache(folder); });
  if (!work.empty() && communicator.rank() == 0 && report) {
    report(fmt::format("unpacking {:.1f} MB", static_cast<double>(bytes) / 1e6));
  }
  if (!work.empty()) Unpacking(work, limit, communicator).run(report);
  for (const InputFile* file : work) {
    const std::string digest = file_digest(file->content_path, communicator);
    on_root(communicator, [&] { write_digest(file->content_path, digest); });
  }
  throw_on_all_ranks(communicator, [&] {
    for (InputFile* file : files) {
      const FileHandle content = open_content(*file);
      file->bytes = content.size();
      file->modified = content.modified();
      if (file->bytes == file->text_begin) throw UserError(ExitCode::bad_content, file->path + ": it has no text");
    }
  });
}

FileHandle open_lines(const std::string& path, const std::vector<std::string>& columns) {
  FileHandle file = FileHandle::open_to_read(path);
  InputFile input;
  input.path = path;
  input.compression = compression_of(file);
  input.table = table_of(file, input.compression);
  if (input.table == TableKind::none) return file;
  input.columns = {.values = value_columns(columns), .skips_binary = true};
  FileHandle lines = FileHandle::create_unnamed(std::filesystem::temp_directory_path().string());
  lines.show_as(path);
  constexpr int64_t limit = int64_t{64} << 30;
  copy_text(*open_packed(file, input, limit), lines);
  return lines;
}

}  // namespace llmtrain
