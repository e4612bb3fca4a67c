// Hostile token files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <cstring>

#include "core/files/hdf5_handle.hpp"
#include "data/files/token_format.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using test::Folder;
using test::refusal;
using test::write_token_file;
using testing::AllOf;
using testing::HasSubstr;

/// Differences from a valid file of 4 tokens in 2 documents.
struct Flaws {
  std::function<void(hid_t file)> tokens = {};  ///< makes /tokens
  std::function<void(hid_t file)> documents = {};
  std::function<void(hid_t file)> extra = {};
  int64_t version = 1;
  int64_t vocabulary = 10;
  int64_t eos = 9;
  hsize_t user_block = 0;
};

void integer_attribute(hid_t file, const char* name, int64_t value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(file, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value);
}

/// A dataset of `type` filled with `values` given as uint64.
void dataset(hid_t file, const char* name, hid_t type, const std::vector<uint64_t>& values,
             const std::function<void(hid_t)>& adjust = nullptr) {
  const hsize_t extent = values.size();
  const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (adjust) adjust(creation.get());
  const Hdf5Handle data(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose);
  ASSERT_TRUE(data.valid());
  ASSERT_GE(H5Dwrite(data.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
}

const std::vector<uint64_t> right_tokens = {1, 9, 2, 9};
const std::vector<uint64_t> right_documents = {0, 2, 4};

std::string write_file(const Folder& folder, const Flaws& flaws) {
  const std::string path = folder / "hostile.h5";
  const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  if (flaws.user_block > 0) H5Pset_userblock(creation.get(), flaws.user_block);
  const Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), H5P_DEFAULT), H5Fclose);
  integer_attribute(file.get(), "format_version", flaws.version);
  integer_attribute(file.get(), "vocabulary_size", flaws.vocabulary);
  integer_attribute(file.get(), "eos_id", flaws.eos);
  if (flaws.tokens) {
    flaws.tokens(file.get());
  } else {
    dataset(file.get(), "tokens", H5T_STD_U16LE, right_tokens);
  }
  if (flaws.documents) {
    flaws.documents(file.get());
  } else {
    dataset(file.get(), "documents", H5T_STD_U64LE, right_documents);
  }
  if (flaws.extra) flaws.extra(file.get());
  return path;
}

std::string refusal_of(const Flaws& flaws) {
  const Folder folder;
  const std::string path = write_file(folder, flaws);
  const std::string message = refusal([&] { open_token_file(path); });
  EXPECT_THAT(message, AllOf(HasSubstr("65 "), HasSubstr(path)));
  return message;
}

TEST(HostileTokenFile, TheRightOneIsAccepted) {
  const Folder folder;
  const auto file = open_token_file(write_file(folder, {}));
  EXPECT_EQ(file->tokens(), 4);
  EXPECT_EQ(test::all_tokens(*file), (std::vector<int32_t>{1, 9, 2, 9}));
}

void text_attribute(hid_t file, const char* name, const std::string& value) {
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), value.size());
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  H5Awrite(attribute.get(), type.get(), value.data());
}

/// Makes preference data of the file.
std::function<void(hid_t)> preferences(int64_t group, const std::string& column, std::vector<float> values,
                                       hid_t type = H5T_IEEE_F32LE) {
  return [=](hid_t file) {
    integer_attribute(file, "group", group);
    if (!column.empty()) text_attribute(file, "column", column);
    if (values.empty()) return;
    const hsize_t extent = values.size();
    const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Hdf5Handle data(H5Dcreate2(file, "values", type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                          H5Dclose);
    H5Dwrite(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  };
}

TEST(HostileTokenFile, Preferences) {
  const Folder folder;
  for (const auto& extra :
       {preferences(2, "margin", {-1, 2}), preferences(2, "", {}), preferences(1, "label", {0, 1})}) {
    EXPECT_TRUE(open_token_file(write_file(folder, {.extra = extra}))->info().has_groups());
  }
  const auto rated = open_token_file(write_file(folder, {.extra = preferences(1, "difficulty", {-3, 0.5})}));
  EXPECT_TRUE(rated->info().has_difficulties() && !rated->info().has_groups());
  const auto refused = [](const std::function<void(hid_t)>& extra) { return refusal_of({.extra = extra}); };
  EXPECT_THAT(refused(preferences(2, "difficulty", {1, 1})), HasSubstr("attribute column is 'difficulty'"));
  EXPECT_THAT(refused(preferences(3, "", {})), HasSubstr("attribute group = 3 is out of range"));
  EXPECT_THAT(refused(preferences(0, "", {})), HasSubstr("attribute group = 0 is out of range"));
  EXPECT_THAT(refused(preferences(1, "margin", {1, 1})), HasSubstr("attribute column is 'margin' with group 1"));
  EXPECT_THAT(refused(preferences(2, "label", {1, 1})), HasSubstr("attribute column is 'label' with group 2"));
  EXPECT_THAT(refused(preferences(2, "score", {1, 1})), HasSubstr("attribute column is 'score'"));
  EXPECT_THAT(refused(preferences(2, "margin", {})), HasSubstr("/values is missing"));
  EXPECT_THAT(refused(preferences(2, "", {1, 1})), HasSubstr("/values, and no attribute column"));
  EXPECT_THAT(refused(preferences(2, "margin", {1, 1, 1})), HasSubstr("/values has 3 entries for 2 documents"));
  EXPECT_THAT(refused(preferences(2, "margin", {1, 1}, H5T_IEEE_F64LE)), HasSubstr("/values must have"));
  EXPECT_THAT(refused(preferences(2, "margin", {1, 1}, H5T_IEEE_F32BE)), HasSubstr("/values must have"));
  EXPECT_THAT(refused(preferences(2, "margin", {1, 1}, H5T_STD_U32LE)), HasSubstr("/values must have"));
  EXPECT_THAT(refused(preferences(2, "margin", {1, NAN})), HasSubstr("margin of document 2 is nan, it must be finite"));
  EXPECT_THAT(refused(preferences(1, "label", {0.5F, 1})), HasSubstr("label of document 1 is 0.5, it must be 0 or 1"));
  EXPECT_THAT(refusal_of({.documents =
                              [](hid_t file) {
                                dataset(file, "documents", H5T_STD_U64LE, {0, 1, 2, 4});
                              },
                          .extra = preferences(2, "", {})}),
              HasSubstr("3 documents are not whole groups of 2"));
}

TEST(HostileTokenFile, OnlyHardLinksAreFollowed) {
  const Folder folder;
  const std::string other = write_file(folder, {});
  EXPECT_THAT(refusal_of({.tokens =
                              [](hid_t file) {
                                dataset(file, "elsewhere", H5T_STD_U16LE, right_tokens);
                                H5Lcreate_soft("/elsewhere", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
                              }}),
              HasSubstr("link"));
  EXPECT_THAT(refusal_of({.tokens =
                              [&](hid_t file) {
                                H5Lcreate_external(other.c_str(), "/tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
                              }}),
              HasSubstr("link"));
  EXPECT_THAT(refusal_of({.documents =
                              [&](hid_t file) {
                                H5Lcreate_external(other.c_str(), "/documents", file, "documents", H5P_DEFAULT,
                                                   H5P_DEFAULT);
                              }}),
              HasSubstr("link"));
  EXPECT_THAT(
      refusal_of({.extra = [](hid_t file) { H5Lcreate_soft("/tokens", file, "mask", H5P_DEFAULT, H5P_DEFAULT); }}),
      HasSubstr("link"));
  // A hard link under a second name is the dataset itself.
  const Folder twice;
  const std::string path = write_file(twice, {.tokens = [](hid_t file) {
                                        dataset(file, "elsewhere", H5T_STD_U16LE, right_tokens);
                                        H5Lcreate_hard(file, "elsewhere", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
                                      }});
  EXPECT_EQ(open_token_file(path)->tokens(), 4);
}

TEST(HostileTokenFile, OnlyPlainStorageIsRead) {
  const Folder folder;
  const std::string raw = folder.file("raw.bin", "12345678");
  EXPECT_THAT(refusal_of({.tokens =
                              [&](hid_t file) {
                                dataset(file, "tokens", H5T_STD_U16LE, right_tokens,
                                        [&](hid_t creation) { H5Pset_external(creation, raw.c_str(), 0, 8); });
                              }}),
              HasSubstr("other files"));
  EXPECT_THAT(refusal_of({.tokens =
                              [](hid_t file) {
                                dataset(file, "tokens", H5T_STD_U16LE, right_tokens, [](hid_t creation) {
                                  const hsize_t chunk = 4;
                                  H5Pset_chunk(creation, 1, &chunk);
                                  H5Pset_deflate(creation, 9);
                                });
                              }}),
              HasSubstr("chunked"));
  EXPECT_THAT(refusal_of({.tokens =
                              [](hid_t file) {
                                dataset(file, "tokens", H5T_STD_U16LE, right_tokens,
                                        [](hid_t creation) { H5Pset_layout(creation, H5D_COMPACT); });
                              }}),
              HasSubstr("compact"));
  EXPECT_THAT(refusal_of({.tokens =
                              [&](hid_t file) {
                                const hsize_t extent = 4;
                                const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
                                const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
                                H5Pset_virtual(creation.get(), space.get(), raw.c_str(), "/tokens", space.get());
                                const Hdf5Handle data(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space.get(),
                                                                 H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                                      H5Dclose);
                                ASSERT_TRUE(data.valid());
                              }}),
              HasSubstr("virtual"));
  EXPECT_THAT(refusal_of({.tokens =
                              [](hid_t file) {
                                const Hdf5Handle group(
                                    H5Gcreate2(file, "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
                              }}),
              HasSubstr("not a dataset"));
  EXPECT_THAT(refusal_of({.tokens = [](hid_t) {}}), HasSubstr("/tokens is missing"));
  EXPECT_THAT(refusal_of({.user_block = 512}), HasSubstr("user block"));
}

TEST(HostileTokenFile, TypesAreThoseOfTheFormat) {
  for (const hid_t type : {H5T_STD_I16LE, H5T_STD_U16BE, H5T_STD_U8LE, H5T_STD_U64LE, H5T_IEEE_F32LE}) {
    EXPECT_THAT(refusal_of({.tokens = [&](hid_t file) { dataset(file, "tokens", type, right_tokens); }}),
                HasSubstr("must have unsigned little-endian integers of the right size"));
  }
  EXPECT_THAT(refusal_of({.documents = [](hid_t file) { dataset(file, "documents", H5T_STD_U32LE, right_documents); }}),
              HasSubstr("must have unsigned little-endian integers of the right size"));
  EXPECT_THAT(refusal_of({.tokens =
                              [](hid_t file) {
                                const hsize_t extent[] = {2, 2};
                                const Hdf5Handle space(H5Screate_simple(2, extent, nullptr), H5Sclose);
                                const Hdf5Handle data(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space.get(),
                                                                 H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                                      H5Dclose);
                              }}),
              HasSubstr("one-dimensional"));
}

TEST(HostileTokenFile, DeclaredSizesAreComparedWithTheFile) {
  // Never written: the library has not allocated it.
  const auto huge = [](hid_t file, const char* name, hid_t type, hsize_t extent) {
    const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    const Hdf5Handle data(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
    ASSERT_TRUE(data.valid());
  };
  EXPECT_THAT(refusal_of({.tokens = [&](hid_t file) { huge(file, "tokens", H5T_STD_U16LE, hsize_t{1} << 50); }}),
              HasSubstr("more than fit"));
  EXPECT_THAT(refusal_of({.documents = [&](hid_t file) { huge(file, "documents", H5T_STD_U64LE, hsize_t{1} << 50); }}),
              HasSubstr("more than fit"));
  // Allocated: the count is raised in the bytes of the file.
  const Folder folder;
  const std::string path = write_file(
      folder, {.tokens = [](hid_t file) { dataset(file, "tokens", H5T_STD_U16LE, std::vector<uint64_t>(12345, 1)); }});
  std::string bytes = test::content_of(path);
  for (const uint64_t count : {uint64_t{1} << 40, (uint64_t{1} << 63) + 8, UINT64_MAX / 2 + 2}) {
    const uint64_t before[] = {12345, 12345}, after[] = {count, count};  // extent and its maximum
    const std::string needle(reinterpret_cast<const char*>(before), 16);
    std::string patched = bytes;
    const size_t at = patched.find(needle);
    ASSERT_NE(at, std::string::npos);
    std::memcpy(patched.data() + at, after, 16);
    folder.file("hostile.h5", patched);
    EXPECT_THAT(refusal([&] { open_token_file(path); }), HasSubstr("65 "));
  }
}

TEST(HostileTokenFile, ContentsMustAgree) {
  const auto with_documents = [](std::vector<uint64_t> documents) {
    return refusal_of({.documents = [&](hid_t file) { dataset(file, "documents", H5T_STD_U64LE, documents); }});
  };
  EXPECT_THAT(with_documents({0, 3, 2, 4}), HasSubstr("ascend"));
  EXPECT_THAT(with_documents({0, 2, 2, 4}), HasSubstr("ascend"));
  EXPECT_THAT(with_documents({1, 2, 4}), HasSubstr("ascend"));
  EXPECT_THAT(with_documents({0, 2, 5}), HasSubstr("ascend"));
  EXPECT_THAT(with_documents({0, uint64_t{1} << 63, 4}), HasSubstr("ascend"));
  EXPECT_THAT(with_documents({0}), HasSubstr("entries for"));
  EXPECT_THAT(with_documents({0, 1, 2, 3, 4, 5}), HasSubstr("entries for"));
  const auto with_mask = [](std::vector<uint64_t> mask) {
    return Flaws{.extra = [mask](hid_t file) { dataset(file, "mask", H5T_STD_U8LE, mask); }};
  };
  EXPECT_THAT(refusal_of(with_mask({1, 1, 1})), HasSubstr("/mask"));
  const Folder folder;
  const auto odd_mask = open_token_file(write_file(folder, with_mask({1, 2, 1, 0})));
  EXPECT_THAT(refusal([&] { test::all_of_mask(*odd_mask); }), HasSubstr("65 "));
}

TEST(HostileTokenFile, IdsAreComparedWithTheVocabulary) {
  for (const hid_t type : {H5T_STD_U16LE, H5T_STD_U32LE}) {
    const Folder folder;
    const auto file = open_token_file(write_file(folder, {.tokens = [&](hid_t id) {
                                                   dataset(id, "tokens", type, {1, 9, 10, 9});
                                                 }}));
    int32_t ids[2];
    file->read(0, 2, ids);
    EXPECT_EQ(ids[1], 9);
    EXPECT_THAT(refusal([&] { file->read(2, 2, ids); }), HasSubstr("token id 10"));
  }
  const Folder folder;
  const auto file = open_token_file(write_file(folder, {.tokens = [](hid_t id) {
                                                 dataset(id, "tokens", H5T_STD_U32LE, {1, 0xFFFFFFFF, 2, 9});
                                               }}));
  EXPECT_THAT(refusal([&] { test::all_tokens(*file); }), HasSubstr("4294967295"));
}

TEST(HostileTokenFile, AttributesAreChecked) {
  EXPECT_THAT(refusal_of({.version = 2}), HasSubstr("format version 2"));
  EXPECT_THAT(refusal_of({.vocabulary = 0}), HasSubstr("vocabulary_size"));
  EXPECT_THAT(refusal_of({.vocabulary = int64_t{1} << 40}), HasSubstr("vocabulary_size"));
  EXPECT_THAT(refusal_of({.eos = 10}), HasSubstr("eos_id"));
  EXPECT_THAT(refusal_of({.eos = -2}), HasSubstr("eos_id"));
  const auto text = [](const char* name, size_t width) {
    return Flaws{.extra = [=](hid_t file) {
      const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
      const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
      H5Tset_size(type.get(), width);
      const Hdf5Handle attribute(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
      const char* value = "text";
      H5Awrite(attribute.get(), type.get(), width == H5T_VARIABLE ? static_cast<const void*>(&value) : value);
    }};
  };
  EXPECT_THAT(refusal_of(text("tokenizer", H5T_VARIABLE)), HasSubstr("fixed length"));
  EXPECT_THAT(refusal_of(text("characters", 4)), HasSubstr("not an integer"));
  EXPECT_THAT(refusal_of({.extra = [](hid_t file) { integer_attribute(file, "tokenizer", 1); }}),
              HasSubstr("fixed length"));
  EXPECT_THAT(refusal_of({.extra = [](hid_t file) { integer_attribute(file, "bytes", -1); }}), HasSubstr("range"));
}

TEST(HostileTokenFile, OtherFilesAreRefused) {
  const Folder folder;
  EXPECT_THAT(refusal([&] { open_token_file(folder / "missing.h5"); }), HasSubstr("66 "));
  EXPECT_THAT(refusal([&] { open_token_file(folder.path()); }), HasSubstr("66 "));
  EXPECT_THAT(refusal([&] { open_token_file(folder.file("text.h5", "no HDF5 at all")); }), HasSubstr("65 "));
  EXPECT_THAT(refusal([&] { open_token_file(folder.file("empty.h5", "")); }), HasSubstr("65 "));
  const std::string bytes = test::content_of(write_file(folder, {}));
  for (const size_t size : {bytes.size() - 1, bytes.size() / 2, size_t{100}, size_t{8}}) {
    const std::string cut = folder.file("cut.h5", bytes.substr(0, size));
    EXPECT_THAT(refusal([&] { open_token_file(cut); }), HasSubstr("65 ")) << size;
  }
}

TEST(HostileTokenFile, FlippedBitsNeverCrash) {
  const Folder folder;
  TokenFileInfo info;
  info.vocabulary_size = 10;
  write_token_file(folder / "x.h5", info, std::vector<int32_t>{1, 9, 2, 9}, {}, std::vector<uint64_t>{0, 2, 4});
  const std::string bytes = test::content_of(folder / "x.h5");
  int refused = 0;
  for (size_t i = 0; i < bytes.size(); i += 5) {
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    const std::string path = folder.file("flipped.h5", flipped);
    refused += refusal([&] { test::all_tokens(*open_token_file(path)); }) != "nothing was thrown" ? 1 : 0;
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace llmtrain
