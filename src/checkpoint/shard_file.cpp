#include "checkpoint/shard_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/hdf5_handle.hpp"

namespace llmtrain {
namespace {

[[noreturn]] void fail(const std::string& path) {
  throw UserError(ExitCode::io, path + ": HDF5 cannot write it (is the disk full?)");
}

Hdf5Handle checked(hid_t id, Hdf5Handle::Close close, const std::string& path) {
  if (id < 0) fail(path);
  return {id, close};
}

/// Contiguous, its place on the disk fixed now; HDF5 writes no byte of it.
Hdf5Handle create_dataset(hid_t parent, const std::string& name, hid_t type, hid_t space, const std::string& path) {
  const Hdf5Handle properties = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path);
  if (H5Pset_layout(properties.get(), H5D_CONTIGUOUS) < 0 ||
      H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
      H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER) < 0) {
    fail(path);
  }
  return checked(H5Dcreate2(parent, name.c_str(), type, space, H5P_DEFAULT, properties.get(), H5P_DEFAULT), H5Dclose,
                 path);
}

int64_t offset_of(const Hdf5Handle& dataset, const std::string& path) {
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) fail(path);
  return static_cast<int64_t>(offset);
}

}  // namespace

ShardFile::ShardFile(const std::string& folder, const Schema& schema, int64_t step, int64_t shard, int64_t shards)
    : name_(shard_name(shard, shards)) {
  index_ = {step, shard, shards, {}};
  for (const StatePart& part : parts_of_shard(schema, shard, shards)) {
    index_.entries.push_back({part, 0, {}});
    units_.push_back(schema.tensors[static_cast<size_t>(part.tensor)].unit);
  }
  const std::string path = folder + "/" + name_;
  create(path, schema);
  file_ = FileHandle::open_to_write(path);
  bytes_ = file_.size();
}

void ShardFile::create(const std::string& path, const Schema& schema) {
  const Hdf5Silence silence;
  const Hdf5Handle access = checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path);
  if (H5Pset_alignment(access.get(), 4096, 4096) < 0) fail(path);
  Hdf5Handle file = checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose, path);
  lay_out(file.get(), schema);
  if (!file.reset()) fail(path);
}

void ShardFile::lay_out(int64_t hdf5_file, const Schema& schema) {
  size_t e = 0;
  for (const StateKind kind : state_kinds) {
    const Hdf5Handle group =
        checked(H5Gcreate2(hdf5_file, std::string(name_of(kind)).c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                H5Gclose, name_);
    while (e < index_.entries.size() && index_.entries[e].part.state == kind) {
      size_t end = e;
      while (end < units_.size() && units_[end] == units_[e] && index_.entries[end].part.state == kind) ++end;
      const int64_t begin = index_.entries[e].part.begin;
      const auto elements = static_cast<hsize_t>(index_.entries[end - 1].part.end - begin);
      const Hdf5Handle space = checked(H5Screate_simple(1, &elements, nullptr), H5Sclose, name_);
      const Hdf5Handle dataset = create_dataset(group.get(), schema.units[static_cast<size_t>(units_[e])].name,
                                                H5T_IEEE_F32LE, space.get(), name_);
      const int64_t offset = offset_of(dataset, name_);
      for (; e < end; ++e) index_.entries[e].offset = offset + (index_.entries[e].part.begin - begin) * state_bytes;
    }
  }
  const Hdf5Handle type = checked(H5Tcopy(H5T_C_S1), H5Tclose, name_);
  if (H5Tset_size(type.get(), to_text(index_).size()) < 0 || H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0) {
    fail(name_);
  }
  const Hdf5Handle space = checked(H5Screate(H5S_SCALAR), H5Sclose, name_);
  index_offset_ = offset_of(create_dataset(hdf5_file, "index", type.get(), space.get(), name_), name_);
}

void ShardFile::write_state(const StateSource& source, std::span<float> buffer, const SaveHook& hook) {
  LLMTRAIN_CHECK(!buffer.empty(), "a checkpoint needs a buffer");
  for (size_t e = 0; e < index_.entries.size(); ++e) {
    IndexEntry& entry = index_.entries[e];
    StreamHash hash;
    for (int64_t begin = entry.part.begin; begin < entry.part.end;) {
      const int64_t count = std::min(static_cast<int64_t>(buffer.size()), entry.part.end - begin);
      source.read(units_[e], entry.part.state, begin, count, buffer.data());
      hash.update(buffer.data(), static_cast<size_t>(count * state_bytes));
      if (hook) hook("write " + name_);
      file_.write(entry.offset + (begin - entry.part.begin) * state_bytes, count * state_bytes, buffer.data());
      begin += count;
    }
    entry.hash = hash.digest();
  }
}

CheckpointShard ShardFile::seal(const SaveHook& hook, bool from_disk) {
  const std::string text = to_text(index_);
  if (hook) hook("write index of " + name_);
  file_.write(index_offset_, static_cast<int64_t>(text.size()), text.data());
  if (hook) hook("sync " + name_);
  file_.sync();
  if (from_disk) file_.drop_cached();
  if (hook) hook("read back " + name_);
  // Parts and index lie in any order: HDF5 puts small datasets where it has room.
  std::vector<StreamHash> hashes(index_.entries.size());
  std::vector<size_t> order(index_.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t e) { return index_.entries[e].offset; });
  StreamHash index_hash;
  const auto see = [](StreamHash& hash, int64_t begin, int64_t end, int64_t offset, const char* data, int64_t bytes) {
    const int64_t from = std::max(begin, offset), to = std::min(end, offset + bytes);
    if (from < to) hash.update(data + (from - offset), static_cast<size_t>(to - from));
  };
  size_t first = 0;
  const CheckpointFile found = digest_file(file_, name_, [&](int64_t offset, const char* data, int64_t bytes) {
    const auto end_of = [&](size_t e) { return index_.entries[e].offset + index_.entries[e].part.bytes(); };
    while (first < order.size() && end_of(order[first]) <= offset) ++first;
    for (size_t i = first; i < order.size() && index_.entries[order[i]].offset < offset + bytes; ++i) {
      const size_t e = order[i];
      see(hashes[e], index_.entries[e].offset, end_of(e), offset, data, bytes);
    }
    see(index_hash, index_offset_, index_offset_ + static_cast<int64_t>(text.size()), offset, data, bytes);
  });
  for (size_t e = 0; e < hashes.size(); ++e) {
    if (hashes[e].digest() == index_.entries[e].hash) continue;
    throw UserError(
        ExitCode::io,
        fmt::format("{}: the disk does not give back what was written ({} of elements {} to {})", file_.path(),
                    name_of(index_.entries[e].part.state), index_.entries[e].part.begin, index_.entries[e].part.end));
  }
  if (found.bytes != bytes_ || index_hash.digest() != digest_of(text.data(), text.size())) {
    throw UserError(ExitCode::io, file_.path() + ": the disk does not give back what was written (index or size)");
  }
  return {found, index_offset_, static_cast<int64_t>(text.size())};
}

CheckpointFile digest_file(const FileHandle& file, const std::string& name, const SeePiece& see) {
  const int64_t bytes = file.size();
  std::vector<char> buffer(static_cast<size_t>(std::min(hash_piece, std::max<int64_t>(bytes, 1))));
  std::vector<Digest> digests;
  for (int64_t offset = 0; offset < bytes; offset += hash_piece) {
    const int64_t count = std::min(hash_piece, bytes - offset);
    file.read(offset, count, buffer.data());
    digests.push_back(digest_of(buffer.data(), static_cast<size_t>(count)));
    if (see) see(offset, buffer.data(), count);
  }
  return {name, bytes, combine(digests)};
}

}  // namespace llmtrain
