#include "data/files/file_digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/whole_file.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

std::string digest_path(const std::string& path) { return path + ".digest"; }

}  // namespace

std::string file_digest(const std::string& path, Communicator& communicator) {
  FileHandle file;
  int64_t bytes = 0;
  throw_on_all_ranks(communicator, [&] {
    file = FileHandle::open_to_read(path);
    bytes = file.size();
  });
  communicator.broadcast(&bytes, sizeof(bytes));
  const int64_t pieces = (bytes + hash_piece - 1) / hash_piece;
  std::vector<Digest> digests;
  share_work<Digest>(
      communicator, own_items(pieces, communicator),
      [&](int64_t piece) {
        thread_local std::vector<char> buffer(hash_piece);
        const int64_t count = std::min(hash_piece, bytes - piece * hash_piece);
        // A file that is shorter than on rank 0 gets another hash.
        const int64_t found = file.read_some(piece * hash_piece, count, buffer.data());
        return digest_of(buffer.data(), static_cast<size_t>(found));
      },
      [&](int64_t, const Digest& digest) { digests.push_back(digest); }, nullptr);
  const std::string mine(reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof(Digest));
  std::string all;
  for (const std::string& part : communicator.gather_all(mine)) all += part;
  return fmt::format("{} {}", bytes, hex(digest_of(all.data(), all.size())));
}

void write_digest(const std::string& path, const std::string& digest) { write_whole_file(digest_path(path), digest); }

StoredFile check_digest(const std::string& path, Communicator& communicator) {
  std::string expected;
  if (communicator.rank() == 0) {
    try {
      FileHandle::open_to_read(path);
      const FileHandle file = FileHandle::open_to_read(digest_path(path));
      expected.resize(static_cast<size_t>(std::min<int64_t>(file.size(), 100)));
      file.read(0, static_cast<int64_t>(expected.size()), expected.data());
    } catch (const UserError&) {
      expected.clear();
    }
  }
  communicator.broadcast(expected);
  if (expected.empty()) return StoredFile::missing;
  return file_digest(path, communicator) == expected ? StoredFile::whole : StoredFile::damaged;
}

}  // namespace llmtrain
