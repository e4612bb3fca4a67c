#include "checkpoint/checkpoint_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/files/hdf5_handle.hpp"
#include "core/message.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

namespace {

class ViewWriter {
 public:
  ViewWriter(std::string path, const Schema& schema, const std::vector<CheckpointShard>& shards)
      : path_(std::move(path)), schema_(schema), shards_(shards), files_(count_files(shards)) {}

  void write(int64_t step) {
    const Hdf5Handle access = hdf5_write_access();
    Hdf5Handle file = checked(H5Fcreate(path_.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose);
    file_ = file.get();
    attribute(file_, "step", step);
    const Hdf5Handle units = group(file_, "units");
    for (size_t p = 0; p < schema_.states.size(); ++p) {
      const StatePlane& plane = schema_.states[p];
      const Hdf5Handle whole = group(units.get(), plane.name);
      for (int64_t unit = 0; unit < std::ssize(schema_.units); ++unit) unit_view(whole.get(), p, unit);
      if (!plane.by_element()) continue;
      const Hdf5Handle tensors = group(file_, plane.name);
      for (const TensorSchema& tensor : schema_.tensors) tensor_view(tensors.get(), plane, tensor);
    }
    if (H5Fflush(file_, H5F_SCOPE_LOCAL) < 0 || !file.reset()) fail_hdf5_write(path_);
  }

 private:
  Hdf5Handle checked(hid_t id, Hdf5Handle::Close close) const {
    if (id < 0) fail_hdf5_write(path_);
    return {id, close};
  }
  Hdf5Handle group(hid_t parent, const std::string& name) const {
    return checked(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  }
  Hdf5Handle line(int64_t elements) const {
    const auto length = static_cast<hsize_t>(elements);
    return checked(H5Screate_simple(1, &length, nullptr), H5Sclose);
  }
  void attribute(hid_t object, const char* name, int64_t value) const {
    const Hdf5Handle space = checked(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle made =
        checked(H5Acreate2(object, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (H5Awrite(made.get(), H5T_NATIVE_INT64, &value) < 0) fail_hdf5_write(path_);
  }
  /// `count` runs of elements, whose begins are `distance` apart.
  struct Runs {
    int64_t begin, elements, count, distance;
  };
  void select(const Hdf5Handle& space, const Runs& runs) const {
    const auto start = static_cast<hsize_t>(runs.begin), block = static_cast<hsize_t>(runs.elements);
    const auto count = static_cast<hsize_t>(runs.count), stride = static_cast<hsize_t>(runs.distance);
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, &stride, &count, &block) < 0) fail_hdf5_write(path_);
  }
  void select(const Hdf5Handle& space, int64_t begin, int64_t elements) const {
    select(space, Runs{begin, elements, 1, elements});
  }
  /// Joins parts of one length and distance, as those of equal segments are: HDF5 is slow with many selections.
  static std::vector<Runs> join(const std::vector<ShardBorders>& parts, const UnitPlanes& planes, size_t plane) {
    std::vector<Runs> joined;
    for (const ShardBorders& part : parts) {
      const int64_t begin = planes.values(plane, 0, part.begin), elements = planes.values(plane, part.begin, part.end);
      if (elements == 0) continue;
      if (!joined.empty() && joined.back().elements == elements) {
        Runs& last = joined.back();
        const int64_t distance = begin - (last.begin + (last.count - 1) * last.distance);
        if (last.count == 1 || distance == last.distance) {
          last.distance = distance;
          ++last.count;
          continue;
        }
      }
      joined.push_back({begin, elements, 1, elements});
    }
    return joined;
  }
  Hdf5Handle create(hid_t parent, const std::string& name, DType type, const Hdf5Handle& space,
                    const Hdf5Handle& layout) const {
    return checked(
        H5Dcreate2(parent, name.c_str(), hdf5_type_of(type), space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT),
        H5Dclose);
  }

  void unit_view(hid_t parent, size_t of_state, int64_t number) const {
    const StatePlane& plane = schema_.states[of_state];
    const UnitSchema& unit = schema_.units[static_cast<size_t>(number)];
    const UnitPlanes planes = schema_.planes_of(number);
    const int64_t values = planes.values(of_state, 0, unit.elements);
    if (values == 0) return;
    const Hdf5Handle layout = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const Hdf5Handle space = line(values);
    const auto shards = static_cast<int64_t>(shards_.size());
    for (int64_t s = 0; s < shards; ++s) {
      const std::vector<Runs> parts = join(parts_of_shard(unit, s, shards), planes, of_state);
      int64_t stored = 0;
      for (const Runs& part : parts) stored += part.count * part.elements;
      if (stored == 0 && plane.by_tensor()) continue;
      const Hdf5Handle from = line(stored);
      const std::string& file = shards_[static_cast<size_t>(s)].file.name;
      const std::string source = group_of_shard(s, shards, files_) + "/" + plane.name + "/" + unit.name;
      int64_t at = 0;
      for (const Runs& part : parts) {
        select(space, part);
        select(from, at, part.count * part.elements);
        if (H5Pset_virtual(layout.get(), space.get(), file.c_str(), source.c_str(), from.get()) < 0)
          fail_hdf5_write(path_);
        at += part.count * part.elements;
      }
    }
    create(parent, unit.name, plane.dtype, space, layout);
  }

  void tensor_view(hid_t parent, const StatePlane& plane, const TensorSchema& tensor) const {
    const UnitSchema& unit = schema_.units[static_cast<size_t>(tensor.unit)];
    const Hdf5Handle layout = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t shape[] = {static_cast<hsize_t>(tensor.rows), static_cast<hsize_t>(tensor.columns)};
    const Hdf5Handle space = checked(H5Screate_simple(tensor.columns == 0 ? 1 : 2, shape, nullptr), H5Sclose);
    const Hdf5Handle from = line(unit.elements);
    select(from, tensor.offset, tensor.elements());
    const std::string source = "/units/" + plane.name + "/" + unit.name;
    if (H5Pset_virtual(layout.get(), space.get(), ".", source.c_str(), from.get()) < 0) fail_hdf5_write(path_);
    const Hdf5Handle dataset = create(parent, tensor.name, plane.dtype, space, layout);
    attribute(dataset.get(), "transposed", tensor.transposed ? 1 : 0);
  }

  std::string path_;
  const Schema& schema_;
  const std::vector<CheckpointShard>& shards_;
  int64_t files_;
  hid_t file_ = -1;
};

/// Writes `folder`/view.h5: /master/<tensor>, /m/<tensor> and /v/<tensor> show each whole tensor under its Hugging Face
/// name, as virtual datasets over /units/<kind>/<unit>, which are virtual datasets over the shards. It is for users
/// (h5py, h5dump); a resume never reads it. Tensors have the orientation of training; the attribute `transposed` is 1
/// if Hugging Face stores [columns, rows], which no virtual dataset can show. Any thread can call it.
void write_view(const std::string& folder, const Schema& schema, int64_t step,
                const std::vector<CheckpointShard>& shards) {
  const std::lock_guard lock(hdf5_mutex());
  const Hdf5Silence silence;
  ViewWriter(folder + "/" + view_name, schema, shards).write(step);
}

/// `hashes` covers the file, or a share of its pieces.
std::string message_of(const CheckpointShard& shard, const std::vector<Digest>& hashes) {
  Message message;
  message.put(shard.file.name);
  message.put(std::vector<int64_t>{shard.file.bytes, shard.index_offset, shard.index_bytes});
  message.put(hashes);
  return message.bytes();
}

CheckpointShard shard_of(const std::string& bytes, std::vector<Digest>& hashes) {
  Message message(bytes);
  CheckpointShard shard;
  std::vector<int64_t> numbers;
  message.take(shard.file.name);
  message.take(numbers);
  message.take(hashes);
  shard.file.bytes = numbers.at(0);
  shard.index_offset = numbers.at(1);
  shard.index_bytes = numbers.at(2);
  return shard;
}

UserError disk_full(const std::string& folder, int64_t needed, int64_t available) {
  return {ExitCode::io,
          fmt::format("{}: the disk is full: a checkpoint needs {} bytes, but {} are free. Older checkpoints were "
                      "kept. Free some space (checkpoint.keep, run.output) and submit the same command again",
                      folder, needed, available)};
}

CheckpointFile write_text(const std::string& folder, const std::string& name, const std::string& text,
                          const SaveHook& hook) {
  call(hook, "write " + name);
  const FileHandle file = FileHandle::create(folder + "/" + name);
  file.write(0, static_cast<int64_t>(text.size()), text.data());
  file.sync();
  file.drop_cached();
  if (file.read_text(static_cast<int64_t>(text.size())) != text) {
    throw UserError(ExitCode::io, file.path() + ": the disk returns other bytes than were written; check the disk");
  }
  return digest_file(file, name);
}

}  // namespace

void complete_attempt(const std::string& attempt, const Schema& schema, const SaveRequest& request,
                      std::vector<CheckpointShard> shards, const SaveHook& hook) {
  call(hook, "write view");
  write_view(attempt, schema, request.step, shards);
  const FileHandle view = FileHandle::open_to_write(attempt + "/" + view_name);
  call(hook, "sync view");
  view.sync();
  view.drop_cached();
  std::vector<CheckpointFile> files{digest_file(view, view_name)};
  for (const auto& [name, text] : request.texts) files.push_back(write_text(attempt, name, text, hook));
  const Manifest manifest{request.step,     request.program,      request.deck,        schema,      std::move(shards),
                          std::move(files), request.ledger_bytes, request.ledger_hash, request.run, request.frozen};
  const std::string text = to_text(manifest);
  const std::string path = attempt + "/" + manifest_name;
  call(hook, "create manifest");
  const FileHandle file = FileHandle::create(path);
  call(hook, "write manifest");
  file.write(0, static_cast<int64_t>(text.size()), text.data());
  call(hook, "sync manifest");
  file.sync();
  file.drop_cached();
  call(hook, "read back manifest");
  if (file.read_text(max_manifest_bytes) != text || to_text(parse_manifest(text, path)) != text) {
    throw UserError(ExitCode::io, path + ": the disk returns other bytes than were written; check the disk");
  }
  call(hook, "sync attempt");
  std::set<std::string> folders{attempt};
  for (const CheckpointShard& shard : manifest.shards) folders.insert(folder_of(attempt + "/" + shard.file.name));
  for (const std::string& folder : folders) sync_folder(folder);
}

CheckpointSave::CheckpointSave(std::string folder, Communicator& communicator, SaveHook hook)
    : folder_(std::move(folder)), communicator_(communicator), hook_(std::move(hook)) {}

/// Synchronizes failures: all ranks continue, or all throw the same error and remove the attempt.
void CheckpointSave::run_phase(const std::function<void()>& work) {
  try {
    throw_on_all_ranks(communicator_, work);
  } catch (const UserError&) {
    shard_.reset();
    communicator_.barrier();  // nobody writes there any more
    if (communicator_.rank() == 0 && !attempt_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(attempt_, ignored);
    }
    throw;
  }
}

void CheckpointSave::begin(const Schema& schema, const SaveRequest& request) {
  schema_ = schema;
  request_ = request;
  run_phase([&] {
    check_schema(schema_, folder_);
    if (communicator_.rank() == 0) attempt_ = create_attempt(folder_, request.step, hook_);
  });
  communicator_.broadcast(attempt_);
  create_shard();
  reserve();
}

void CheckpointSave::create_shard() {
  const int64_t rank = communicator_.rank(), size = communicator_.size();
  const std::vector<int64_t>& files = request_.file_of_rank;
  const int64_t count = files.empty() ? size : *std::ranges::max_element(files) + 1;
  if (count == size) {
    return run_phase([&] {
      call(hook_, "create shard");
      shard_ = std::make_unique<ShardFile>(attempt_, schema_, request_.step, rank, size);
    });
  }
  shared_ = {files[static_cast<size_t>(rank)], count, {}};
  for (int64_t r = 0; r < size; ++r) {
    if (files[static_cast<size_t>(r)] == shared_.file) shared_.shards.push_back(r);
  }
  run_phase([&] {
    call(hook_, "create shard");
    if (shared_.shards.front() == rank) {
      ShardFile::create_shared(attempt_, shared_, schema_, request_.step, size);
    }
  });
  run_phase([&] { shard_ = std::make_unique<ShardFile>(attempt_, shared_, schema_, request_.step, rank, size); });
}

void CheckpointSave::reserve() {
  const bool first = shared_.files == 0 || shared_.shards.front() == communicator_.rank();
  const int64_t needed = sum_of_ranks(communicator_, first ? shard_->bytes() : 0);
  int64_t available = free_bytes(folder_);
  communicator_.broadcast(&available, sizeof(available));
  int64_t full = available < needed ? 1 : 0;
  run_phase([&] {
    call(hook_, "reserve");
    if (full == 0 && first && !shard_->reserve()) full = 1;
  });
  full = sum_of_ranks(communicator_, full);
  run_phase([&] {
    if (full > 0) throw disk_full(folder_, needed, available);
  });
}

void CheckpointSave::write(const StateSource& source, std::span<float> buffer) {
  try {
    shard_->write_state(source, buffer, hook_);
    sealed_ = shard_->seal(hook_, request_.from_disk);
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

void CheckpointSave::digest() {
  digested_ = true;
  if (failed()) return;
  const auto members = static_cast<int64_t>(shared_.shards.size());
  const auto mine = std::ranges::find(shared_.shards, communicator_.rank()) - shared_.shards.begin();
  const int64_t pieces = (shard_->bytes() + hash_piece - 1) / hash_piece;
  try {
    pieces_ = shard_->digest_pieces(pieces * mine / members, pieces * (mine + 1) / members);
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

void CheckpointSave::gather_shards() {
  const std::vector<Digest> own{sealed_.file.hash};
  const auto all = communicator_.gather(message_of(sealed_, shared_.files > 0 ? pieces_ : own));
  if (communicator_.rank() != 0) return;
  std::map<std::string, std::vector<Digest>> of_file;
  for (const std::string& one : all) {
    std::vector<Digest> hashes;
    shards_.push_back(shard_of(one, hashes));
    std::vector<Digest>& so_far = of_file[shards_.back().file.name];
    so_far.insert(so_far.end(), hashes.begin(), hashes.end());
  }
  for (CheckpointShard& shard : shards_) {
    const std::vector<Digest>& hashes = of_file[shard.file.name];
    shard.file.hash = shared_.files > 0 ? combine(hashes) : hashes.front();
  }
}

void CheckpointSave::gather() {
  run_phase([&] {
    if (failure_) std::rethrow_exception(failure_);
  });
  shard_.reset();
  gather_shards();
  gathered_ = true;
}

void CheckpointSave::complete() {
  if (communicator_.rank() != 0) return;
  try {
    complete_attempt(attempt_, schema_, request_, shards_, hook_);
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

std::string CheckpointSave::publish() {
  run_phase([&] {
    if (failure_) std::rethrow_exception(failure_);
    if (communicator_.rank() != 0) return;
    publish_attempt(folder_, attempt_, request_.step, hook_);
    link_checkpoint(folder_, "latest", request_.step, hook_);
    if (request_.best) link_checkpoint(folder_, "best", request_.step, hook_);
  });
  return folder_ + "/" + checkpoint_name(request_.step);
}

}  // namespace llmtrain
