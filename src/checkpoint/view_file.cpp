#include "checkpoint/view_file.hpp"

#include <utility>

#include "core/files/hdf5_handle.hpp"

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

}  // namespace

void write_view(const std::string& folder, const Schema& schema, int64_t step,
                const std::vector<CheckpointShard>& shards) {
  const std::lock_guard lock(hdf5_mutex());
  const Hdf5Silence silence;
  ViewWriter(folder + "/" + view_name, schema, shards).write(step);
}

}  // namespace llmtrain
