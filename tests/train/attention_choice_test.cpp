// Attention backend of a job's ranks, and of its earlier run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "train/run/libraries.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

TEST(AttentionChoice, DifferencesAreNamedByHost) {
  const Names hosts = {"node1", "node1", "node2", "node3"};
  const std::string some = attention_difference(Names{"cuDNN 9.19.0", "cuDNN 9.19.0", "", "cuDNN 9.19.0"}, hosts);
  EXPECT_THAT(some, AllOf(HasSubstr(": cuDNN 9.19.0 on node1, node3; built-in on node2. "),
                          HasSubstr("LLMTRAIN_ATTENTION=own"), HasSubstr("Install the same cuDNN")));
  const std::string versions = attention_difference(Names{"", "cuDNN 9.19.0", "cuDNN 9.20.0", "cuDNN 9.20.0"}, hosts);
  EXPECT_THAT(versions, HasSubstr(": built-in on node1; cuDNN 9.19.0 on node1; cuDNN 9.20.0 on node2, node3. "));
  for (const char* library : {"", "cuDNN 9.19.0"}) {
    EXPECT_THAT(attention_difference(Names(4, library), hosts), IsEmpty()) << "control";
  }
}

TEST(ProductLibrary, DifferencesAreNamedByHost) {
  const Names hosts = {"node1", "node1", "node2"};
  EXPECT_THAT(product_difference(Names{"cuBLASLt 12.8.5", "cuBLASLt 12.8.5", "cuBLASLt 13.0.2"}, hosts),
              AllOf(HasSubstr(": cuBLASLt 12.8.5 on node1; cuBLASLt 13.0.2 on node2. "), HasSubstr("CUDA toolkit"),
                    HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(product_difference(Names(3, "cuBLASLt 12.8.5"), hosts), IsEmpty()) << "control";
}

TEST(ProductLibrary, OtherThanTheCheckpointsIsSaid) {
  const auto notes = [](const std::string& before, const std::string& now) {
    ResumePoint point;
    point.manifest.run.products = before;
    warn_if_products_changed(point, now);
    return point.notes;
  };
  EXPECT_THAT(
      notes("cuBLASLt 12.8.5", "cuBLASLt 13.0.2"),
      testing::ElementsAre(HasSubstr("were by cuBLASLt 12.8.5 up to the checkpoint and are by cuBLASLt 13.0.2")));
  EXPECT_THAT(notes("cuBLASLt 12.8.5", ""), testing::ElementsAre(HasSubstr("and are llmtrain's own from here on")));
  EXPECT_THAT(notes("cuBLASLt 12.8.5", "cuBLASLt 12.8.5"), IsEmpty()) << "control";
  EXPECT_THAT(notes("", "cuBLASLt 12.8.5"), IsEmpty()) << "of the host or an older version, which names none";
}

TEST(AttentionChoice, OfManyHostsSomeAreNamed) {
  Names hosts, libraries(1000, "cuDNN 9.19.0");
  for (int i = 0; i < 1000; ++i) hosts.push_back("n" + std::to_string(i));
  libraries[17] = "";
  EXPECT_THAT(attention_difference(libraries, hosts),
              HasSubstr(": cuDNN 9.19.0 on n0, n1, n2, n3, n4, n5, n6, n7 and 991 more; built-in on n17. "));
}

TEST(AttentionChoice, IsALibrarysOnlyWhereTheRunTakesIt) {
  const ModelConfig plain;
  ModelConfig dropout;
  dropout.attention_dropout = 0.1;
  const std::string library = "cuDNN 9.19.0";
  EXPECT_EQ(attention_backend(library, true, plain, DType::bf16), library);
  EXPECT_EQ(attention_backend("", true, plain, DType::bf16), "");
  EXPECT_EQ(attention_backend(library, true, plain, DType::f32), "");
  EXPECT_EQ(attention_backend(library, true, dropout, DType::bf16), "");
  EXPECT_EQ(attention_backend(library, false, plain, DType::bf16), "");
}

TEST(AttentionChoice, OtherThanTheCheckpointsIsSaid) {
  const auto notes = [](const std::string& before, const std::string& now) {
    ResumePoint point;
    point.manifest.run.attention = before;
    warn_if_backend_changed(point, now);
    return point.notes;
  };
  EXPECT_THAT(
      notes("", "cuDNN 9.19.0"),
      testing::ElementsAre(HasSubstr("was built-in up to the checkpoint and is cuDNN 9.19.0 from here on: results")));
  EXPECT_THAT(notes("cuDNN 9.19.0", "cuDNN 9.20.0"),
              testing::ElementsAre(HasSubstr("was cuDNN 9.19.0 up to the checkpoint and is cuDNN 9.20.0 from here")));
  EXPECT_THAT(notes("cuDNN 9.19.0", ""), testing::ElementsAre(HasSubstr("and is built-in from here on")));
  EXPECT_THAT(notes("cuDNN 9.19.0", "cuDNN 9.19.0"), IsEmpty()) << "control";
  EXPECT_THAT(notes("", ""), IsEmpty()) << "control";
}

}  // namespace
}  // namespace llmtrain
