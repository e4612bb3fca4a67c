#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/toy_state.hpp"
#include "core/files/hdf5_handle.hpp"

namespace llmtrain {
namespace {

/// Reads like a user's HDF5.
std::vector<float> read_tensor(const std::string& path, const std::string& name, std::vector<hsize_t>& shape) {
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  EXPECT_TRUE(file.valid());
  const Hdf5Handle dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  EXPECT_TRUE(dataset.valid()) << name;
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose);
  shape.resize(static_cast<size_t>(H5Sget_simple_extent_ndims(space.get())));
  H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr);
  std::vector<float> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  EXPECT_GE(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  return values;
}

// tests/style/sources.sh checks that every file is made with this access.
TEST(View, FilesAreWrittenForHdf5Release110) {
  const auto newest = [](hid_t access) {
    H5F_libver_t low = H5F_LIBVER_EARLIEST, high = H5F_LIBVER_EARLIEST;
    EXPECT_GE(H5Pget_libver_bounds(access, &low, &high), 0);
    return high;
  };
  EXPECT_EQ(newest(hdf5_write_access().get()), H5F_LIBVER_V110);
  const Hdf5Handle standard(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  if (major > 1 || minor > 10) {
    EXPECT_NE(newest(standard.get()), H5F_LIBVER_V110) << "control";
  }
}

/// Expects all tensors of the toy state of a step.
void expect_tensors(const std::string& path, const Schema& schema, int64_t step, const std::string& where) {
  for (const TensorSchema& tensor : schema.tensors) {
    for (size_t plane = 0; plane < schema.states.size(); ++plane) {
      std::vector<hsize_t> shape;
      const std::vector<float> values = read_tensor(path, schema.states[plane].name + "/" + tensor.name, shape);
      ASSERT_EQ(shape.size(), tensor.columns == 0 ? 1u : 2u);
      ASSERT_EQ(static_cast<int64_t>(values.size()), tensor.elements());
      int64_t wrong = 0, also_of_another_step = 0;
      for (int64_t e = 0; e < tensor.elements(); ++e) {
        const float value = values[static_cast<size_t>(e)];
        const auto is_of = [&](int64_t n) {
          return test::same_bits(value, test::toy_value(n, plane, tensor.unit, tensor.offset + e));
        };
        wrong += is_of(step) ? 0 : 1;
        also_of_another_step += is_of(step + 1) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << tensor.name << ", " << where;
      EXPECT_LE(also_of_another_step, 1);
    }
  }
}

TEST(View, ShowsEveryTensorWholeWhateverTheShards) {
  const test::ToyFolder folder("llmtrain_view_test");
  for (const auto& [shards, segment_elements] :
       {std::pair<int64_t, int64_t>(1, 10000), {3, 10000}, {2, 512}, {5, 256}}) {
    const Schema schema = make_schema(test::toy_specs(), master_and_moments(), segment_elements);
    const std::string path = test::write_layout(folder.path(), schema, shards, shards) + "/" + view_name;
    expect_tensors(path, schema, shards, std::to_string(shards) + " shards");
  }
}

TEST(View, ShowsFilesThatShardsShare) {
  const test::ToyFolder folder("llmtrain_view_of_shared_files_test");
  int64_t step = 0;
  for (const std::vector<int64_t>& files :
       {std::vector<int64_t>{0, 0}, {0, 0, 1}, {0, 0, 1, 1, 1, 2}, {0, 1, 0, 1, 1, 0, 2}}) {
    for (const int64_t segment_elements : {10000, 512, 256}) {
      const Schema schema = make_schema(test::toy_specs(), master_and_moments(), segment_elements);
      const std::string path = test::write_shared_layout(folder.path(), schema, ++step, files);
      expect_tensors(path + "/" + view_name, schema, step, std::to_string(files.size()) + " shards in files");
      EXPECT_EQ(verify_checkpoint(path, test::communicator()).step, step);
    }
  }
}

}  // namespace
}  // namespace llmtrain
