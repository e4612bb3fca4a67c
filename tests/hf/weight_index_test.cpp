// An index whose names point outside the folder, with a valid one.

#include "hf/weights/weight_index.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "hf/files.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using test::safetensors_bytes;
using test::ScratchFolder;
using testing::HasSubstr;

class WeightIndexTest : public testing::Test {
 protected:
  WeightIndexTest() {
    write_part("model-00001-of-00002.safetensors", "a");
    write_part("model-00002-of-00002.safetensors", "b");
  }

  void write_part(const std::string& name, const std::string& tensor) const {
    const std::string header = fmt::format(R"({{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}})", tensor);
    folder_.write(name, safetensors_bytes(header, 4));
  }
  /// weight_map of a -> the first, b -> the second name.
  void write_index(const std::string& first, const std::string& second = "model-00002-of-00002.safetensors") const {
    folder_.write(
        weights_index_name,
        fmt::format(R"({{"metadata":{{"total_size":8}},"weight_map":{{"a":"{}","b":"{}"}}}})", first, second));
  }
  std::string read(ExitCode code = ExitCode::bad_content) {
    return test::verdict(code, [&] { index_ = read_weight_index(FolderHandle::open(folder_.path())); });
  }

  ScratchFolder folder_{test::unique_name("index")};
  WeightIndex index_;
};

const std::string first_part = "model-00001-of-00002.safetensors";

TEST_F(WeightIndexTest, ReadsShardsAndFindsTensors) {
  write_index(first_part);
  ASSERT_EQ(read(), "accepted");
  ASSERT_EQ(index_.files.size(), 2u);
  ASSERT_NE(index_.find("b"), nullptr);
  EXPECT_EQ(index_.files[index_.find("b")->file].name, "model-00002-of-00002.safetensors");
  EXPECT_EQ(index_.find("c"), nullptr);
  const WeightIndex copy = WeightIndex::unpacked(index_.packed());
  EXPECT_EQ(copy.folder, index_.folder);
  EXPECT_EQ(copy.files[1].bytes, index_.files[1].bytes);
  ASSERT_EQ(copy.tensors.size(), 2u);
  EXPECT_EQ(copy.tensors[1].name, "b");
  EXPECT_EQ(copy.tensors[1].file, 1u);
  EXPECT_EQ(copy.tensors[1].begin, index_.tensors[1].begin);
  EXPECT_EQ(copy.tensors[1].shape, index_.tensors[1].shape);
}

TEST_F(WeightIndexTest, NoNameLeadsOutOfTheFolder) {
  const ScratchFolder outside(test::unique_name("outside"));
  outside.write("secret.safetensors", folder_.read(first_part));
  const std::string name = fs::path(outside.path()).filename().string();
  for (const std::string& evil :
       {"../" + name + "/secret.safetensors", outside.at("secret.safetensors"), std::string("./") + first_part,
        std::string("sub/") + first_part, std::string(".."), std::string("."), std::string(), std::string("a\\u0000b"),
        std::string("..\\\\x"), std::string(5000, 'x'), std::string("/dev/zero")}) {
    write_index(evil);
    EXPECT_THAT(read(), HasSubstr("is not the name of a file in this folder")) << evil;
  }
  fs::create_symlink(outside.at("secret.safetensors"), folder_.at("link.safetensors"));
  write_index("link.safetensors");
  EXPECT_EQ(read(), "accepted") << "a link is the owner's, a name is anybody's";
  fs::create_symlink("gone.safetensors", folder_.at("broken.safetensors"));
  write_index("broken.safetensors");
  EXPECT_THAT(read(ExitCode::missing_input), HasSubstr("a symbolic link to 'gone.safetensors', which does not exist"));
  ASSERT_EQ(mkfifo(folder_.at("pipe.safetensors").c_str(), 0600), 0);
  write_index("pipe.safetensors");
  EXPECT_THAT(read(), HasSubstr("not a regular file"));
  fs::create_directory(folder_.at("folder.safetensors"));
  write_index("folder.safetensors");
  EXPECT_THAT(read(), HasSubstr("not a regular file"));
  write_index("missing.safetensors");
  EXPECT_THAT(read(ExitCode::missing_input), HasSubstr("missing.safetensors: cannot read it"));
  write_index(first_part);
  EXPECT_EQ(read(), "accepted");
}

TEST_F(WeightIndexTest, IndexAndFilesMustAgree) {
  write_index(first_part, first_part);
  EXPECT_THAT(read(), HasSubstr("does not contain 'b'"));
  write_index("model-00002-of-00002.safetensors", first_part);
  EXPECT_THAT(read(), HasSubstr("which weight_map assigns to"));
  folder_.write(weights_index_name, R"({"weight_map":{"a":"model-00001-of-00002.safetensors"}})");
  EXPECT_EQ(read(), "accepted");  // a file that the index does not name is not read
  write_part("model-00002-of-00002.safetensors", "a");
  write_index(first_part);
  EXPECT_THAT(read(), HasSubstr("contains 'a', which weight_map assigns to"));
  write_part("model-00002-of-00002.safetensors", "c");
  EXPECT_THAT(read(), HasSubstr("which is not in weight_map"));
}

TEST_F(WeightIndexTest, RefusesWhatIsNoIndex) {
  for (const char* text : {"[]", "{}", "5", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":5})"}) {
    folder_.write(weights_index_name, text);
    EXPECT_THAT(read(), HasSubstr("weight_map must be")) << text;
  }
  folder_.write(weights_index_name, R"({"weight_map":{"a":5}})");
  EXPECT_THAT(read(), HasSubstr("weight_map.'a': must be a text, not 5"));
  folder_.write(weights_index_name, R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_THAT(read(), HasSubstr("the key 'a' appears twice"));
  folder_.write(weights_index_name, std::string(100000, '['));
  EXPECT_THAT(read(), HasSubstr("nested deeper than 64"));
}

TEST_F(WeightIndexTest, OtherFormatsAreNamedWithTheWayOut) {
  const auto found = [](const std::string& name) {
    const ScratchFolder folder(test::unique_name("other"));
    if (!name.empty()) folder.write(name, "PK\x03\x04");
    return test::verdict(ExitCode::missing_input, [&] { read_weight_index(FolderHandle::open(folder.path())); });
  };
  for (const char* name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth", "pytorch_model.bin.index.json"}) {
    EXPECT_THAT(found(name), testing::AllOf(HasSubstr(name), HasSubstr("save_pretrained"))) << name;
  }
  EXPECT_THAT(found("model.gguf"), HasSubstr("only safetensors are supported"));
  EXPECT_THAT(found("adapter_model.safetensors"), HasSubstr("LoRA adapter"));
  EXPECT_THAT(found("consolidated.safetensors"), HasSubstr("original layout of its authors"));
  EXPECT_THAT(found(""), HasSubstr("no model.safetensors here"));
}

}  // namespace
}  // namespace llmtrain
