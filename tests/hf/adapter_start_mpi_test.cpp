// Adapters that start from the model's matrices: products and frozen matrices of PEFT, for every number of ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "harness/harness.hpp"
#include "hf/adapters/adapter_start.hpp"
#include "hf/config/config_json.hpp"
#include "hf/model_files.hpp"
#include "hf/quantized_folders.hpp"
#include "models/lora.hpp"
#include "models/models.hpp"
#include "models/quantization_config.hpp"

namespace llmtrain::test {
namespace {

using Init = AdapterShape::Init;
using testing::HasSubstr;
using Values = std::vector<float>;

struct Case {
  const char* init;
  const char* model;
  Init kind;
  double alpha;
};

DecoderShape adapted_shape(const Case& c, int64_t rank) {
  std::ostringstream text;
  text << std::ifstream(models + c.model + "/config.json").rdbuf();
  const ModelConfig model = parse_hf_config(text.str(), "config.json").model;
  DecoderShape shape = decoder_shape(model, model.vocab_size);
  LoraConfig lora;
  lora.rank = rank;
  lora.alpha = c.alpha;
  lora.init = c.kind;
  adapt(shape, lora);
  if (c.kind == Init::loftq) {
    QuantizationConfig nf4;
    nf4.bits = 4;
    nf4.double_quantization = false;
    quantize(shape, nf4);
  }
  return shape;
}

Values read_start(const AdapterStart& start, const std::string& name) {
  const WeightIndex::Tensor* tensor = start.index.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  Values values(static_cast<size_t>(tensor->numel()));
  start.file->read(tensor->begin, 4 * tensor->numel(), values.data());
  return values;
}

/// The frozen matrix of a module, as a run reads it.
Values read_base(const Case& c, const std::string& name, const AdapterStart& start, int64_t rows, int64_t columns) {
  const FolderHandle folder = FolderHandle::open(models + c.model);
  const WeightIndex index = read_weight_index(folder);
  const FileHandle file = folder.open_to_read(single_weights_name);
  const auto file_of = [&](size_t) -> const FileHandle& { return file; };
  StoredSlice slice = stored_slice(*index.find(name), file_of, rows, columns, std::string_view(c.model) == "gpt2");
  slice.minus = &start.minus.at(name);
  Values values(static_cast<size_t>(rows * columns));
  const int64_t middle = columns + 5;  // within a row
  read_slice(slice, 0, middle, values.data());
  read_slice(slice, middle, rows * columns, values.data() + middle);
  return values;
}

double largest_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, static_cast<double>(std::abs(a[i] - b[i])));
  }
  return largest;
}

TEST(AdapterStart, HasTheProductsAndFrozenMatricesOfPeft) {
  const ScratchFolder folder(shared_path("start"), communicator().rank() == 0);
  communicator().barrier();
  const std::string file = folder.at(adapter_start_name);
  const WeightIndex golden = read_weight_file(FolderHandle::open("tests/reference/adapters"), "starts.safetensors");
  constexpr int64_t rank = 4;
  for (const Case& c : std::vector<Case>{{"pissa", "llama", Init::pissa, 8},
                                         {"olora", "llama", Init::olora, 8},
                                         {"pissa", "gpt2", Init::pissa, 8},
                                         {"loftq", "llama", Init::loftq, 4}}) {
    const DecoderShape shape = adapted_shape(c, rank);
    write_adapter_start(file, models + c.model, shape, communicator());
    const AdapterStart start = AdapterStart::open(file, shape, communicator());
    int compared = 0;
    for (const WeightIndex::Tensor& tensor : golden.tensors) {
      const std::string prefix = std::string(c.init) + "." + c.model + ".", end = ".product";
      if (!tensor.name.starts_with(prefix) || !tensor.name.ends_with(end)) continue;
      const std::string module = tensor.name.substr(prefix.size(), tensor.name.size() - prefix.size() - end.size());
      SCOPED_TRACE(tensor.name);
      ++compared;
      const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
      const Values a = read_start(start, lora_a_name(module)), b = read_start(start, lora_b_name(module));
      ASSERT_EQ(std::ssize(a), rank * columns);
      ASSERT_EQ(std::ssize(b), rows * rank);
      Values product(static_cast<size_t>(rows * columns));
      for (int64_t i = 0; i < rows * columns; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < rank; ++k) {
          sum += b[static_cast<size_t>(i / columns * rank + k)] * a[static_cast<size_t>(k * columns + i % columns)];
        }
        product[static_cast<size_t>(i)] = static_cast<float>(c.alpha / rank * sum);
      }
      EXPECT_LT(largest_difference(product, values_in(golden, tensor.name)), 2e-6);
      EXPECT_EQ(start.minus.contains(module + ".weight"), c.kind != Init::loftq);
      if (c.kind == Init::loftq) continue;
      Values base = read_base(c, module + ".weight", start, rows, columns);
      if (std::string_view(c.model) == "gpt2") {
        const Values turned = base;
        for (int64_t i = 0; i < rows * columns; ++i) {
          base[static_cast<size_t>(i % columns * rows + i / columns)] = turned[static_cast<size_t>(i)];
        }
      }
      EXPECT_LT(largest_difference(base, values_in(golden, prefix + module + ".base")), 2e-6);
      EXPECT_GT(largest_difference(base, values_in(models + c.model, module + ".weight")), 1e-2) << "control";
    }
    EXPECT_EQ(compared, std::string_view(c.model) == "gpt2" ? 1 : 2);
    communicator().barrier();
  }
  const Case wide{"pissa", "llama", Init::pissa, 8};
  EXPECT_THAT(verdict(ExitCode::deck,
                      [&] { write_adapter_start(file, models + "llama", adapted_shape(wide, 13), communicator()); }),
              HasSubstr("lora.r: model.layers.0.self_attn.k_proj is a matrix of 12 x 24, which has no 13 singular"));
  communicator().barrier();
}

}  // namespace
}  // namespace llmtrain::test
