#include "data/files/unpack.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/compressed_file.hpp"
#include "data/files/file_digest.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece = int64_t{1} << 20;

void unpack(const InputFile& input, const std::string& target, int64_t limit) {
  const FileHandle from = FileHandle::open_to_read(input.path);
  CompressedReader reader(from, input.compression, limit);
  WholeFile to(target);
  std::string buffer(static_cast<size_t>(piece), '\0');
  int64_t written = 0;
  for (int64_t n = reader.read(buffer.data(), piece); n > 0; n = reader.read(buffer.data(), piece)) {
    to.file().write(written, n, buffer.data());
    written += n;
  }
  if (from.size() != input.bytes) {
    throw UserError(ExitCode::io, input.path + ": the file was changed during reading; start again");
  }
  to.publish();
}

}  // namespace

void unpack_files(std::vector<InputFile*> files, const std::string& folder, int64_t limit, Communicator& communicator,
                  const ProgressReport& report) {
  files.erase(std::remove_if(files.begin(), files.end(),
                             [](const InputFile* file) { return file->compression == Compression::none; }),
              files.end());
  if (files.empty()) return;
  std::vector<bool> missing(files.size());
  for (size_t f = 0; f < files.size(); ++f) {
    files[f]->content_path =
        fmt::format("{}/unpacked-{}.txt", folder, short_hash(file_digest(files[f]->path, communicator)));
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
    if (!missing[f] || std::any_of(work.begin(), work.end(), same)) continue;
    work.push_back(files[f]);
    bytes += files[f]->bytes;
  }
  if (!work.empty()) throw_on_all_ranks(communicator, [&] { require_writable_cache(folder); });
  if (!work.empty() && communicator.rank() == 0 && report) {
    report(fmt::format("unpacking {:.1f} MB", static_cast<double>(bytes) / 1e6));
  }
  share_work<int>(
      communicator, own_items(static_cast<int64_t>(work.size()), communicator),
      [&](int64_t item) {
        const InputFile& file = *work[static_cast<size_t>(item)];
        unpack(file, file.content_path, limit);
        return 0;
      },
      [](int64_t, int) {}, percent_report(report, "unpacking"));
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

}  // namespace llmtrain
