#include "checkpoint/view_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "core/files/hdf5_handle.hpp"
#include "core/files/opened_files.hpp"

namespace llmtrain {

namespace {

/// Values [begin, end) of a unit's plane.
struct Part {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// The values that some shards hold, `members` in ascending order: one part for each segment and each run of
/// consecutive members, in order.
std::vector<Part> parts_of(const UnitSchema& unit, const UnitPlanes& planes, size_t plane,
                           std::span<const int64_t> members, const Sharding& shards) {
  std::vector<Part> parts;
  std::vector<int64_t> numbers;  // of the members that hold the unit, among all that do
  for (const int64_t member : members) {
    const int64_t ranks = shards.ranks_of_blocks();
    if (member % ranks == shards.owner_of(unit)) numbers.push_back(member / ranks);
  }
  int64_t first = 0;
  const std::vector<int64_t> whole{unit.elements};
  for (const int64_t end : unit.segment_ends.empty() ? whole : unit.segment_ends) {
    for (size_t i = 0; i < numbers.size();) {
      size_t last = i;
      while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
      const int64_t from = first + borders_of_shard(end - first, numbers[i], shards.of_unit()).begin;
      const int64_t to = first + borders_of_shard(end - first, numbers[last], shards.of_unit()).end;
      const Part part{planes.values(plane, 0, from), planes.values(plane, 0, to)};
      if (part.size() > 0) parts.push_back(part);
      i = last + 1;
    }
    first = end;
  }
  return parts;
}

int64_t size_of(const std::vector<Part>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0}, [](int64_t n, const Part& p) { return n + p.size(); });
}

/// The same values, counted in a dataset that has `held` one after the other.
std::vector<Part> places_in(const std::vector<Part>& held, const std::vector<Part>& parts) {
  std::vector<Part> places;
  int64_t before = 0;
  auto at = held.begin();
  for (const Part& part : parts) {
    for (; at->end <= part.begin; ++at) before += at->size();
    const int64_t begin = before + part.begin - at->begin;
    places.push_back({begin, begin + part.size()});
  }
  return places;
}

/// Writes virtual datasets.
class VirtualDatasets {
 public:
  explicit VirtualDatasets(std::string path) : path_(std::move(path)) {}

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
  Hdf5Handle layout() const { return checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose); }
  Hdf5Handle create(hid_t parent, const std::string& name, DType type, const Hdf5Handle& space,
                    const Hdf5Handle& layout) const {
    return checked(
        H5Dcreate2(parent, name.c_str(), hdf5_type_of(type), space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT),
        H5Dclose);
  }
  void attribute(hid_t object, const char* name, int64_t value) const {
    const Hdf5Handle space = checked(H5Screate(H5S_SCALAR), H5Sclose);
    const Hdf5Handle made =
        checked(H5Acreate2(object, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (H5Awrite(made.get(), H5T_NATIVE_INT64, &value) < 0) fail_hdf5_write(path_);
  }

  /// Maps these places of `space` to a dataset that has their values one after the other.
  void map(const Hdf5Handle& layout, const Hdf5Handle& space, const std::vector<Part>& places, const std::string& file,
           const std::string& dataset) const {
    const Hdf5Handle from = line(size_of(places));
    int64_t at = 0;
    for (const Runs& runs : join(places)) {
      const int64_t count = runs.count * runs.elements;
      select(space, runs);
      select(from, Runs{at, count, 1, count});
      map(layout, space, file, dataset, from);
      at += count;
    }
  }
  /// Maps the selection of `space` to that of `from`, the space of another dataset.
  void map(const Hdf5Handle& layout, const Hdf5Handle& space, const std::string& file, const std::string& dataset,
           const Hdf5Handle& from) const {
    if (H5Pset_virtual(layout.get(), space.get(), file.c_str(), dataset.c_str(), from.get()) < 0)
      fail_hdf5_write(path_);
  }
  void select(const Hdf5Handle& space, const Part& part) const {
    select(space, Runs{part.begin, part.size(), 1, part.size()});
  }
  /// Selects rows * columns elements of a matrix, or `rows` of a vector.
  void select_block(const Hdf5Handle& space, const TensorBlock& at, int64_t rows, int64_t columns) const {
    const hsize_t start[] = {static_cast<hsize_t>(at.first_row), static_cast<hsize_t>(at.first_column)};
    const hsize_t count[] = {static_cast<hsize_t>(rows), static_cast<hsize_t>(columns)};
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, count, nullptr) < 0) fail_hdf5_write(path_);
  }

 private:
  /// `count` runs of elements, whose begins are `distance` apart.
  struct Runs {
    int64_t begin, elements, count, distance;
  };
  void select(const Hdf5Handle& space, const Runs& runs) const {
    const auto start = static_cast<hsize_t>(runs.begin), block = static_cast<hsize_t>(runs.elements);
    const auto count = static_cast<hsize_t>(runs.count), stride = static_cast<hsize_t>(runs.distance);
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, &stride, &count, &block) < 0) fail_hdf5_write(path_);
  }
  /// Joins parts of one length and distance, as those of equal segments are: HDF5 is slow with many selections.
  static std::vector<Runs> join(const std::vector<Part>& parts) {
    std::vector<Runs> joined;
    for (const Part& part : parts) {
      if (!joined.empty() && joined.back().elements == part.size()) {
        Runs& last = joined.back();
        const int64_t distance = part.begin - (last.begin + (last.count - 1) * last.distance);
        if (last.count == 1 || distance == last.distance) {
          last.distance = distance;
          ++last.count;
          continue;
        }
      }
      joined.push_back({part.begin, part.size(), 1, part.size()});
    }
    return joined;
  }

  std::string path_;
};

/// Datasets of whole units, and of tensors in them.
class ViewWriter {
 public:
  ViewWriter(const std::string& path, const Schema& schema, const std::vector<CheckpointShard>& shards,
             const Sharding& sharding)
      : path_(path), datasets_(path), schema_(schema), shards_(sharding) {
    std::map<std::string_view, size_t> numbers;
    for (int64_t s = 0; s < shards_.count; ++s) {
      const std::string& name = shards[static_cast<size_t>(s)].file.name;
      const auto [known, is_new] = numbers.emplace(name, files_.size());
      if (is_new) files_.push_back({name, {}});
      files_[known->second].members.push_back(s);
    }
  }

  void write(int64_t step) {
    const Hdf5Handle access = hdf5_write_access();
    ++opened_files();
    Hdf5Handle file = datasets_.checked(H5Fcreate(path_.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose);
    datasets_.attribute(file.get(), "step", step);
    const Hdf5Handle units = datasets_.group(file.get(), unit_views);
    for (size_t p = 0; p < schema_.states.size(); ++p) {
      const StatePlane& plane = schema_.states[p];
      const Hdf5Handle whole = datasets_.group(units.get(), plane.name);
      for (int64_t unit = 0; unit < std::ssize(schema_.units); ++unit) unit_view(whole.get(), p, unit);
      if (!plane.by_element()) continue;
      const Hdf5Handle tensors = datasets_.group(file.get(), plane.name);
      for (const auto& blocks : tensors_in_blocks(schema_)) tensor_view(tensors.get(), plane, blocks);
    }
    if (H5Fflush(file.get(), H5F_SCOPE_LOCAL) < 0 || !file.reset()) fail_hdf5_write(path_);
  }

 private:
  struct File {
    std::string name;
    std::vector<int64_t> members;  ///< its shards
  };

  void unit_view(hid_t parent, size_t of_state, int64_t number) const {
    const StatePlane& plane = schema_.states[of_state];
    const UnitSchema& unit = schema_.units[static_cast<size_t>(number)];
    const UnitPlanes planes = schema_.planes_of(number);
    const int64_t values = planes.values(of_state, 0, unit.elements);
    if (values == 0) return;
    const Hdf5Handle layout = datasets_.layout(), space = datasets_.line(values);
    const bool shared = std::ssize(files_) != shards_.count;
    const std::string source = fmt::format("{}/{}/{}", shared ? unit_views : "", plane.name, unit.name);
    for (const File& file : files_) {
      const std::vector<Part> parts = parts_of(unit, planes, of_state, file.members, shards_);
      if (!parts.empty()) datasets_.map(layout, space, parts, file.name, source);
    }
    datasets_.create(parent, unit.name, plane.dtype, space, layout);
  }

  /// The blocks of a tensor, one if it is whole.
  void tensor_view(hid_t parent, const StatePlane& plane, const std::vector<const TensorSchema*>& blocks) const {
    const TensorSchema& first = *blocks.front();
    const TensorBlock whole = first.place();
    const Hdf5Handle layout = datasets_.layout();
    const hsize_t shape[] = {static_cast<hsize_t>(whole.rows), static_cast<hsize_t>(whole.columns)};
    const Hdf5Handle space = datasets_.checked(H5Screate_simple(first.columns == 0 ? 1 : 2, shape, nullptr), H5Sclose);
    for (const TensorSchema* block : blocks) {
      const UnitSchema& unit = schema_.units[static_cast<size_t>(block->unit)];
      const Hdf5Handle from = datasets_.line(unit.elements);
      datasets_.select(from, Part{block->offset, block->offset + block->elements()});
      if (block->block) datasets_.select_block(space, *block->block, block->rows, std::max<int64_t>(block->columns, 1));
      datasets_.map(layout, space, ".", fmt::format("{}/{}/{}", unit_views, plane.name, unit.name), from);
    }
    const Hdf5Handle dataset = datasets_.create(parent, first.name, plane.dtype, space, layout);
    datasets_.attribute(dataset.get(), "transposed", first.transposed ? 1 : 0);
  }

  std::string path_;
  VirtualDatasets datasets_;
  const Schema& schema_;
  Sharding shards_;
  std::vector<File> files_;
};

}  // namespace

void write_view(const std::string& folder, const Schema& schema, int64_t step,
                const std::vector<CheckpointShard>& shards, const Sharding& sharding) {
  const std::lock_guard lock(hdf5_mutex());
  const Hdf5Silence silence;
  ViewWriter(folder + "/" + view_name, schema, shards, sharding).write(step);
}

void add_unit_views(int64_t file, const std::string& path, const Schema& schema, const SharedFile& shared,
                    const Sharding& shards) {
  const VirtualDatasets datasets(path);
  const Hdf5Handle units = datasets.group(file, unit_views);
  for (size_t p = 0; p < schema.states.size(); ++p) {
    const StatePlane& plane = schema.states[p];
    const Hdf5Handle parent = datasets.group(units.get(), plane.name);
    for (int64_t number = 0; number < std::ssize(schema.units); ++number) {
      const UnitSchema& unit = schema.units[static_cast<size_t>(number)];
      const UnitPlanes planes = schema.planes_of(number);
      const std::vector<Part> all = parts_of(unit, planes, p, shared.shards, shards);
      if (all.empty()) continue;
      const Hdf5Handle layout = datasets.layout(), space = datasets.line(size_of(all));
      for (const int64_t shard : shared.shards) {
        const std::vector<Part> parts = parts_of(unit, planes, p, {&shard, 1}, shards);
        const std::string source =
            fmt::format("{}/{}/{}", group_of_shard(shard, shards.count, shared.files), plane.name, unit.name);
        if (!parts.empty()) datasets.map(layout, space, places_in(all, parts), ".", source);
      }
      datasets.create(parent.get(), unit.name, plane.dtype, space, layout);
    }
  }
}

}  // namespace llmtrain
