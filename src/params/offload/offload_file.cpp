#include "params/offload/offload_file.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.hpp"
#include "core/number_text.hpp"

namespace llmtrain {

namespace {

constexpr const char* advice =
    "parallel.offload_path must be a folder on a local disk of every node, such as ${TMPDIR} or "
    "${SLURM_TMPDIR}";

std::string size_text(int64_t bytes) {
  return fmt::format("{} ({} bytes)", bytes_text(static_cast<double>(bytes)), bytes);
}

/// Bytes that this user can still write to the file system, or -1 if unknown.
int64_t free_bytes(const std::string& folder) {
  struct statvfs space {};
  if (statvfs(folder.c_str(), &space) != 0 || space.f_blocks == 0) return -1;
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

[[noreturn]] void fail_full(const std::string& place, int64_t bytes, int64_t available) {
  throw UserError(ExitCode::io,
                  fmt::format("{}: the disk is full: the offloaded state needs {}, {} are free. Free some space, use "
                              "another folder, or use more nodes with parallel.zero above 0",
                              place, size_text(bytes), size_text(available)));
}

}  // namespace

OffloadFile::OffloadFile(const OffloadLayout& layout, const std::string& folder, std::vector<std::string> units)
    : layout_(layout), units_(std::move(units)) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UserError(ExitCode::cannot_create, fmt::format("{}: the folder does not exist: {}", folder, advice));
  }
  file_ = FileHandle::create_unnamed(folder);
  reserve(folder);
  file_.bypass_cache();
  forget_contents();
}

void OffloadFile::reserve(const std::string& folder) {
  const int64_t bytes = layout_.bytes();
  if (!file_.reserve(bytes)) fail_full(folder, bytes, free_bytes(folder));
  if (file_.size() >= bytes) return;
  // The file system cannot reserve space, so that zeros are written instead.
  constexpr int64_t at_once = int64_t{1} << 20;
  const std::vector<char> zeros(static_cast<size_t>(std::min(bytes, at_once)));
  for (int64_t at = 0; at < bytes; at += at_once) file_.write(at, std::min(at_once, bytes - at), zeros.data());
  file_.sync();
}

/// Sets the checksums to those of zeros.
void OffloadFile::forget_contents() {
  const size_t pieces = layout_.pieces().size();
  sums_.resize(pieces * layout_.kinds());
  const std::vector<char> zeros(static_cast<size_t>(layout_.max_part()));
  int64_t length = -1;
  uint64_t sum = 0;
  for (size_t p = 0; p < pieces; ++p) {
    for (size_t kind = 0; kind < layout_.kinds(); ++kind) {
      const int64_t bytes = layout_.bytes_of(layout_.pieces()[p], kind, kind + 1);
      if (bytes != length) sum = XXH3_64bits(zeros.data(), static_cast<size_t>(bytes));
      length = bytes;
      sums_[sum_of(p, kind)] = sum;
    }
  }
}

void OffloadFile::check(size_t piece, size_t kind, const char* data) const {
  const OffloadPiece& p = layout_.pieces()[piece];
  const auto bytes = static_cast<size_t>(layout_.bytes_of(p, kind, kind + 1));
  if (XXH3_64bits(data, bytes) == sums_[sum_of(piece, kind)]) return;
  throw UserError(ExitCode::io,
                  fmt::format("{}: the offloaded state of {}, elements {} to {}, was corrupted on the disk: the disk "
                              "or memory of this node is not reliable. Exclude the node, or use another "
                              "parallel.offload_path; the same command resumes from the newest checkpoint",
                              file_.path(), units_[static_cast<size_t>(p.unit)], p.begin, p.end));
}

void OffloadFile::read(size_t piece, size_t first, size_t last, char* data) const {
  const OffloadPiece& p = layout_.pieces()[piece];
  file_.read(p.offset + layout_.bytes_of(p, 0, first), layout_.bytes_of(p, first, last), data);
  for (size_t kind = first; kind < last; ++kind) check(piece, kind, data + layout_.bytes_of(p, first, kind));
}

void OffloadFile::write(size_t piece, size_t first, size_t last, const char* data) {
  const OffloadPiece& p = layout_.pieces()[piece];
  for (size_t kind = first; kind < last; ++kind) {
    const auto bytes = static_cast<size_t>(layout_.bytes_of(p, kind, kind + 1));
    sums_[sum_of(piece, kind)] = XXH3_64bits(data + layout_.bytes_of(p, first, kind), bytes);
  }
  file_.write(p.offset + layout_.bytes_of(p, 0, first), layout_.bytes_of(p, first, last), data);
}

void OffloadFile::read_unit(int unit, size_t kind, char* data) const {
  for (size_t piece = layout_.pieces_before(unit); piece < layout_.pieces_before(unit + 1); ++piece) {
    read(piece, kind, kind + 1, data);
    data += layout_.bytes_of(layout_.pieces()[piece], kind, kind + 1);
  }
}

void check_offload_folder(const std::string& folder, int64_t bytes, const std::string& where) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UserError(ExitCode::cannot_create,
                    fmt::format("{}: {}: the folder does not exist: {}", where, folder, advice));
  }
  try {
    FileHandle::create_unnamed(folder);
  } catch (const UserError& error) {
    throw UserError(error.code(), fmt::format("{}: {}: {}", where, error.what(), advice));
  }
  const int64_t available = free_bytes(folder);
  if (available >= 0 && available < bytes) fail_full(fmt::format("{}: {}", where, folder), bytes, available);
}

bool is_in_memory(const std::string& folder) {
  struct statfs facts {};
  if (statfs(folder.c_str(), &facts) != 0) return false;
  return facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC;
}

}  // namespace llmtrain
