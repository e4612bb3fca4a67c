#include "checkpoint/shard_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "checkpoint/view_file.hpp"
#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"
#include "core/files/json_node.hpp"
#include "core/files/opened_files.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_index_bytes = int64_t{256} << 20;

IndexEntry entry_from(const JsonNode& field, const StateRange& wanted, int64_t bytes, int64_t file_bytes) {
  if (field.array().size() != 6) field.refuse("six values are expected");
  const StateRange range{static_cast<size_t>(field.at(size_t{0}).count()), field.at(1).count(), field.at(2).count(),
                         field.at(3).count()};
  if (range != wanted) field.refuse("not the expected range");
  const int64_t offset = field.at(4).count(file_bytes);
  if (bytes > file_bytes - offset) field.refuse("the range extends beyond the end of the file");
  return {range, offset, digest_from(field.at(5))};
}

constexpr int64_t pieces_ahead = 8;  // the disk reads some of them while another is hashed

Hdf5Handle checked(hid_t id, Hdf5Handle::Close close, const std::string& path) {
  if (id < 0) fail_hdf5_write(path);
  return {id, close};
}

/// Contiguous dataset whose location on the disk is fixed now; HDF5 writes no byte of it.
Hdf5Handle create_dataset(hid_t parent, const std::string& name, hid_t type, hid_t space, const std::string& path) {
  const Hdf5Handle properties = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path);
  if (H5Pset_layout(properties.get(), H5D_CONTIGUOUS) < 0 ||
      H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
      H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER) < 0) {
    fail_hdf5_write(path);
  }
  return checked(H5Dcreate2(parent, name.c_str(), type, space, H5P_DEFAULT, properties.get(), H5P_DEFAULT), H5Dclose,
                 path);
}

Hdf5Handle create_group(hid_t parent, const std::string& name, const std::string& path) {
  return checked(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose, path);
}

void create_file(const std::string& path, const std::function<void(hid_t)>& fill) {
  // Whoever is first makes a folder of many files; if that fails, so does the next call, which says why.
  std::error_code ignored;
  std::filesystem::create_directory(std::filesystem::path(path).parent_path(), ignored);
  const Hdf5Silence silence;
  const Hdf5Handle access = hdf5_write_access();
  if (H5Pset_alignment(access.get(), 4096, 4096) < 0) fail_hdf5_write(path);
  ++opened_files();
  Hdf5Handle file = checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose, path);
  fill(file.get());
  if (!file.reset()) fail_hdf5_write(path);
}

/// The disk writes while the next pieces are copied and hashed, and has little left to do when the file is synced.
class BusyDisk {
 public:
  explicit BusyDisk(const FileHandle& file) : file_(file) {}
  void written(int64_t offset, int64_t count) {
    if (offset != end_) begin_ = offset;
    end_ = offset + count;
    const int64_t whole_pages = end_ / 4096 * 4096;  // the page after them will change
    if (whole_pages - begin_ < window) return;
    file_.begin_sync(begin_, whole_pages - begin_);
    begin_ = whole_pages;
  }

 private:
  static constexpr int64_t window = int64_t{4} << 20;
  const FileHandle& file_;
  int64_t begin_ = 0, end_ = -1;
};

[[noreturn]] void refuse_range(const std::string& path, const StatePlanes& states, const StateRange& range) {
  throw UserError(
      ExitCode::io,
      fmt::format("{}: the disk returns other bytes than were written ({} of elements {} to {}); check the disk", path,
                  states[range.plane].name, range.begin, range.end));
}

[[noreturn]] void refuse_index(const std::string& path) {
  throw UserError(ExitCode::io,
                  path + ": the disk returns other bytes than were written (index or size); check the disk");
}

int64_t offset_of(const Hdf5Handle& dataset, const std::string& path) {
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) fail_hdf5_write(path);
  return static_cast<int64_t>(offset);
}

}  // namespace

std::string to_text(const ShardIndex& index) {
  std::string text =
      fmt::format("{{\"format\":\"llmtrain shard\",\"version\":{},\"step\":{},\"shard\":{},\"shards\":{},\"parts\":[",
                  checkpoint_version, index.step, index.shard, index.shards);
  const char* separator = "\n";
  for (const IndexEntry& entry : index.entries) {
    text += fmt::format("{}[{},{},{},{},{},\"{}\"]", separator, entry.range.plane, entry.range.tensor,
                        entry.range.begin, entry.range.end, entry.offset, hex(entry.hash));
    separator = ",\n";
  }
  return text + "]}\n";
}

ShardIndex parse_shard_index(std::string_view text, const Manifest& manifest, int64_t shard,
                             const std::string& source) {
  const nlohmann::json json = parse_json(text, source, {.bytes = max_index_bytes, .values = int64_t{1} << 24});
  const JsonNode field(json, source);
  field.check_keys({"format", "version", "step", "shard", "shards", "parts"});
  const ShardIndex head{field.at("step").count(), field.at("shard").count(), field.at("shards").count(), {}};
  const auto shards = static_cast<int64_t>(manifest.shards.size());
  if (field.at("format").text() != "llmtrain shard" || field.at("version").count() != checkpoint_version ||
      head.step != manifest.step || head.shard != shard || head.shards != shards) {
    field.refuse(fmt::format("not the index of shard {} of {} of step {}", shard, shards, manifest.step));
  }
  ShardIndex index = head;
  const std::vector<StateRange> wanted = ranges_of_shard(manifest.schema, shard, manifest.sharding());
  const JsonNode ranges = field.at("parts").array();
  if (ranges.size() != wanted.size()) ranges.refuse(fmt::format("{} ranges are expected", wanted.size()));
  const int64_t file_bytes = manifest.shards[static_cast<size_t>(shard)].file.bytes;
  index.entries.reserve(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t bytes = bytes_of(manifest.schema, wanted[i]);
    index.entries.push_back(entry_from(ranges.at(i), wanted[i], bytes, file_bytes));
  }
  return index;
}

ShardIndex read_shard_index(const FileHandle& file, const Manifest& manifest, int64_t shard) {
  const CheckpointShard& entry = manifest.shards[static_cast<size_t>(shard)];
  if (entry.index_bytes > max_index_bytes) {
    throw UserError(ExitCode::bad_content, file.path() + ": its index is too large");
  }
  std::string text(static_cast<size_t>(entry.index_bytes), '\0');
  file.read(entry.index_offset, entry.index_bytes, text.data());
  return parse_shard_index(text, manifest, shard, file.path());
}

ShardFile::ShardFile(const Schema& schema, int64_t step, int64_t shard, const Sharding& shards)
    : states_(schema.states), index_{step, shard, shards.count, {}} {
  for (const StateRange& range : ranges_of_shard(schema, shard, shards)) {
    index_.entries.push_back({range, 0, {}});
    units_.push_back(schema.tensors[static_cast<size_t>(range.tensor)].unit);
    planes_.push_back(plane_of(schema, range));
  }
}

ShardFile::ShardFile(const std::string& folder, const Schema& schema, int64_t step, int64_t shard,
                     const Sharding& shards)
    : ShardFile(schema, step, shard, shards) {
  name_ = shard_name(shard, shards.count);
  create_file(folder + "/" + name_, [&](hid_t file) { lay_out(file, schema, true); });
  open(folder + "/" + name_);
}

ShardFile::ShardFile(const std::string& folder, const SharedFile& shared, const Schema& schema, int64_t step,
                     int64_t shard, const Sharding& shards)
    : ShardFile(schema, step, shard, shards) {
  shared_ = true;
  name_ = shard_name(shared.file, shared.files);
  const std::string path = folder + "/" + name_;
  {
    const Hdf5Silence silence;
    ++opened_files();
    const Hdf5Handle file = checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, path);
    const std::string group = group_of_shard(shard, shards.count, shared.files);
    lay_out(checked(H5Gopen2(file.get(), group.c_str(), H5P_DEFAULT), H5Gclose, path).get(), schema, false);
  }
  open(path);
}

void ShardFile::create_shared(const std::string& folder, const SharedFile& shared, const Schema& schema, int64_t step,
                              const Sharding& shards) {
  const std::string path = folder + "/" + shard_name(shared.file, shared.files);
  create_file(path, [&](hid_t file) {
    for (const int64_t shard : shared.shards) {
      const Hdf5Handle group = create_group(file, group_of_shard(shard, shards.count, shared.files), path);
      ShardFile(schema, step, shard, shards).lay_out(group.get(), schema, true);
    }
    add_unit_views(file, path, schema, shared, shards);
  });
}

void ShardFile::open(const std::string& path) {
  file_ = FileHandle::open_to_write(path);
  bytes_ = file_.size();
}

void ShardFile::lay_out(int64_t group, const Schema& schema, bool create) {
  const auto dataset_of = [&](hid_t parent, const std::string& name, hid_t type, hid_t space) {
    return create ? create_dataset(parent, name, type, space, name_)
                  : checked(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), H5Dclose, name_);
  };
  size_t e = 0;
  for (size_t p = 0; p < states_.size(); ++p) {
    const StatePlane& plane = states_[p];
    const Hdf5Handle of_plane = create ? create_group(group, plane.name, name_)
                                       : checked(H5Gopen2(group, plane.name.c_str(), H5P_DEFAULT), H5Gclose, name_);
    while (e < index_.entries.size() && index_.entries[e].range.plane == p) {
      size_t end = e;
      while (end < units_.size() && units_[end] == units_[e] && index_.entries[end].range.plane == p) ++end;
      int64_t stored = 0;
      for (size_t i = e; i < end; ++i) stored += bytes_of_entry(i);
      const auto values = static_cast<hsize_t>(stored) / size_of(plane.dtype);
      const Hdf5Handle space = checked(H5Screate_simple(1, &values, nullptr), H5Sclose, name_);
      const Hdf5Handle dataset = dataset_of(of_plane.get(), schema.units[static_cast<size_t>(units_[e])].name,
                                            hdf5_type_of(plane.dtype), space.get());
      int64_t offset = offset_of(dataset, name_);
      for (; e < end; ++e) {
        index_.entries[e].offset = offset;
        offset += bytes_of_entry(e);
      }
    }
  }
  const Hdf5Handle type = checked(H5Tcopy(H5T_C_S1), H5Tclose, name_);
  if (H5Tset_size(type.get(), to_text(index_).size()) < 0 || H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0) {
    fail_hdf5_write(name_);
  }
  const Hdf5Handle space = checked(H5Screate(H5S_SCALAR), H5Sclose, name_);
  index_offset_ = offset_of(dataset_of(group, "index", type.get(), space.get()), name_);
}

void ShardFile::write_state(const StateSource& source, std::span<float> buffer, const SaveHook& hook) {
  LLMTRAIN_CHECK(!buffer.empty(), "a checkpoint needs a buffer");
  BusyDisk busy(file_);
  for (size_t e = 0; e < index_.entries.size(); ++e) {
    IndexEntry& entry = index_.entries[e];
    const StatePlane& plane = planes_[e];
    const int64_t at_once = plane.elements_in(static_cast<int64_t>(buffer.size_bytes()));
    LLMTRAIN_CHECK(at_once > 0, "the buffer of a checkpoint must hold at least one chunk");
    StreamHash hash;
    for (int64_t begin = entry.range.begin; begin < entry.range.end;) {
      const int64_t count = std::min(at_once, entry.range.end - begin);
      const int64_t bytes = plane.bytes(count);
      source.read(units_[e], entry.range.plane, begin, count, buffer.data());
      hash.update(buffer.data(), static_cast<size_t>(bytes));
      if (hook) hook("write " + name_);
      const int64_t offset = entry.offset + plane.bytes(begin - entry.range.begin);
      file_.write(offset, bytes, buffer.data());
      busy.written(offset, bytes);
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
  return shared_ ? seal_shard(text) : seal_file(text);
}

CheckpointShard ShardFile::seal_shard(const std::string& text) {
  std::vector<char> buffer(static_cast<size_t>(hash_piece));
  for (size_t e = 0; e < index_.entries.size(); ++e) {
    const IndexEntry& entry = index_.entries[e];
    const int64_t bytes = bytes_of_entry(e);
    StreamHash hash;
    for (int64_t at = 0; at < bytes; at += hash_piece) {
      const int64_t count = std::min(hash_piece, bytes - at);
      file_.read(entry.offset + at, count, buffer.data());
      hash.update(buffer.data(), static_cast<size_t>(count));
    }
    if (hash.digest() != entry.hash) refuse_range(file_.path(), states_, entry.range);
  }
  std::string index(text.size(), '\0');
  file_.read(index_offset_, static_cast<int64_t>(index.size()), index.data());
  if (file_.size() != bytes_ || index != text) refuse_index(file_.path());
  return {{name_, bytes_, {}}, index_offset_, static_cast<int64_t>(text.size())};
}

std::vector<Digest> ShardFile::digest_pieces(int64_t first, int64_t last) const {
  std::vector<char> buffer(static_cast<size_t>(hash_piece));
  std::vector<Digest> digests;
  for (int64_t piece = first; piece < last; ++piece) {
    const int64_t count = std::min(hash_piece, bytes_ - piece * hash_piece);
    file_.read(piece * hash_piece, count, buffer.data());
    digests.push_back(digest_of(buffer.data(), static_cast<size_t>(count)));
  }
  return digests;
}

CheckpointShard ShardFile::seal_file(const std::string& text) {
  // Parts and index are in any order: HDF5 puts small datasets into free space.
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
    const auto end_of = [&](size_t e) { return index_.entries[e].offset + bytes_of_entry(e); };
    while (first < order.size() && end_of(order[first]) <= offset) ++first;
    for (size_t i = first; i < order.size() && index_.entries[order[i]].offset < offset + bytes; ++i) {
      const size_t e = order[i];
      see(hashes[e], index_.entries[e].offset, end_of(e), offset, data, bytes);
    }
    see(index_hash, index_offset_, index_offset_ + static_cast<int64_t>(text.size()), offset, data, bytes);
  });
  for (size_t e = 0; e < hashes.size(); ++e) {
    if (hashes[e].digest() != index_.entries[e].hash) refuse_range(file_.path(), states_, index_.entries[e].range);
  }
  if (found.bytes != bytes_ || index_hash.digest() != digest_of(text.data(), text.size())) refuse_index(file_.path());
  return {found, index_offset_, static_cast<int64_t>(text.size())};
}

CheckpointFile digest_file(const FileHandle& file, const std::string& name, const SeePiece& see) {
  const int64_t bytes = file.size();
  std::vector<char> buffer(static_cast<size_t>(std::min(hash_piece, std::max<int64_t>(bytes, 1))));
  std::vector<Digest> digests;
  for (int64_t offset = 0; offset < bytes; offset += hash_piece) {
    const int64_t count = std::min(hash_piece, bytes - offset);
    file.begin_read(offset + hash_piece, pieces_ahead * hash_piece);
    file.read(offset, count, buffer.data());
    digests.push_back(digest_of(buffer.data(), static_cast<size_t>(count)));
    if (see) see(offset, buffer.data(), count);
  }
  return {name, bytes, combine(digests)};
}

}  // namespace llmtrain
