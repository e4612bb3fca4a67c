#include "hf/export_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "hf/convert.hpp"
#include "hf/match_weights.hpp"
#include "hf/read_slice.hpp"
#include "models/models.hpp"
#include "parallel/runtime.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece_elements = int64_t{1} << 22;
constexpr int64_t most_text = int64_t{256} << 20;  ///< bytes of a tokenizer's file

std::map<std::string, std::string> texts_of(const ExportOptions& options, const ModelConfig& model, StoredType type) {
  std::map<std::string, std::string> texts = options.texts;
  std::string& config = texts["config.json"];
  const std::string_view dtype = dtype_name(type);
  TokenIds ids = options.ids;
  if (options.texts.empty()) {
    config = write_hf_config(model, ids, dtype);
  } else {
    config = with_dtype(config, "config.json", dtype);
    ids = parse_hf_config(config, "config.json").ids;
  }
  texts.try_emplace("generation_config.json", write_generation_config(model, ids));
  if (options.save_tokenizer) {
    for (const char* name : tokenizer_file_names) texts.erase(name);
  }
  return texts;
}

ModelFolderPlan plan_of(const ExportOptions& options, std::map<std::string, std::string> texts) {
  ModelFolderPlan plan;
  plan.path = options.output;
  plan.overwrite = options.overwrite;
  plan.file_bytes = options.file_bytes;
  plan.texts = std::move(texts);
  plan.save_tokenizer = options.save_tokenizer;
  return plan;
}

/// Sends the values of a slice through this process, or, on the rank that has a writer, into the file. A failure to
/// write is kept: the other ranks count on this one in the gathers that follow.
class SliceWriter {
 public:
  SliceWriter(ParamStore& params, ModelFolderWriter* writer) : params_(params), writer_(writer) {}

  void write(int unit, int number, const ParamSlice& slice) {
    const ParamSpec& param = params_.spec(unit).params[static_cast<size_t>(number)];
    const int64_t offset = params_.layout(unit).offset(number) + slice.first_row * param.columns;
    const int64_t elements = slice.rows * param.columns;
    const int64_t step = slice.transposed ? elements : piece_elements;
    for (int64_t at = 0; at < elements; at += step) {
      const int64_t count = std::min(step, elements - at);
      values_.resize(static_cast<size_t>(count));
      params_.gather_range(unit, offset + at, offset + at + count, values_.data());
      if (writer_ == nullptr || failure_) continue;
      try {
        if (slice.transposed) transpose(slice.rows, param.columns);
        writer_->write(slice.name, at, values_.data(), count);
      } catch (const UserError&) {
        failure_ = std::current_exception();
      }
    }
  }
  void raise() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void transpose(int64_t rows, int64_t columns) {
    turned_.resize(values_.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        turned_[static_cast<size_t>(c * rows + r)] = values_[static_cast<size_t>(r * columns + c)];
      }
    }
    values_.swap(turned_);
  }

  ParamStore& params_;
  ModelFolderWriter* writer_;
  std::vector<float> values_, turned_;
  std::exception_ptr failure_;
};

/// Rows of the embedding that no token has stay behind: to other programs they would be tokens.
ParamSlice exported_slice(const DecoderShape& shape, const ParamSlice& slice) {
  ParamSlice exported = slice;
  const DecoderNames& names = shape.names;
  const bool by_token = slice.name == names.embedding + ".weight" || slice.name == names.head + ".weight";
  if (by_token) exported.rows = shape.tokens;
  return exported;
}

void copy_tensor(const ModelFolderWriter& writer, const WeightIndex::Tensor& tensor, const FileHandle& file) {
  const StoredSlice whole{&tensor, &file, tensor.numel(), 1, false};
  std::vector<float> values(static_cast<size_t>(std::min(whole.rows, piece_elements)));
  for (int64_t at = 0; at < whole.rows; at += piece_elements) {
    const int64_t count = std::min(piece_elements, whole.rows - at);
    read_slice(whole, at, at + count, values.data());
    writer.write(tensor.name, at, values.data(), count);
  }
}

}  // namespace

std::optional<StoredType> weight_type_of(std::string_view name) {
  if (name == "fp32") return StoredType::F32;
  if (name == "bf16") return StoredType::BF16;
  if (name == "fp16") return StoredType::F16;
  return std::nullopt;
}

void export_model(const ExportOptions& options, const DecoderShape& shape, ParamStore& params,
                  Communicator& communicator) {
  const StoredType type = options.type.value_or(StoredType::F32);
  ModelConfig model = shape.config;
  model.vocab_size = shape.tokens;
  std::unique_ptr<ModelFolderWriter> writer;
  raise_together(communicator, [&] {
    if (communicator.rank() != 0) return;
    const std::string obstacle = options.texts.empty() ? hf_config_obstacle(model) : "";
    if (!obstacle.empty()) throw UserError(ExitCode::deck, fmt::format("{}: {}", options.output, obstacle));
    ModelFolderPlan plan = plan_of(options, texts_of(options, model, type));
    for (int unit = 0; unit < params.unit_count(); ++unit) {
      for (const ParamSpec& param : params.spec(unit).params) {
        for (const ParamSlice& slice : param.slices) {
          plan.tensors.push_back({slice.name, type, stored_shape(param, exported_slice(shape, slice)), 0, 0});
        }
      }
    }
    writer = std::make_unique<ModelFolderWriter>(std::move(plan));
  });
  SliceWriter slices(params, writer.get());
  for (int unit = 0; unit < params.unit_count(); ++unit) {
    const std::vector<ParamSpec>& specs = params.spec(unit).params;
    for (size_t p = 0; p < specs.size(); ++p) {
      for (const ParamSlice& slice : specs[p].slices) {
        slices.write(unit, static_cast<int>(p), exported_slice(shape, slice));
      }
    }
  }
  raise_together(communicator, [&] {
    slices.raise();
    if (writer) writer->publish();
  });
}

std::map<std::string, std::string> model_texts(const std::string& folder) {
  const FolderHandle source = FolderHandle::open(folder);
  std::map<std::string, std::string> texts;
  texts["config.json"] = source.open_to_read("config.json").read_text(most_config_bytes);
  const std::string generation = "generation_config.json";
  if (source.has(generation)) texts[generation] = source.open_to_read(generation).read_text(most_config_bytes);
  for (const char* name : tokenizer_file_names) {
    if (source.has(name)) texts[name] = source.open_to_read(name).read_text(most_text);
  }
  return texts;
}

void convert_model(const std::string& source, ExportOptions options) {
  const FolderHandle folder = FolderHandle::open(source);
  options.texts = model_texts(source);
  const HfConfig config = parse_hf_config(options.texts["config.json"], folder.path_of("config.json"));
  const WeightIndex index = read_weight_index(folder);
  const DecoderShape shape = decoder_shape(config.model, config.model.vocab_size);
  const WeightMatch match = match_weights(shape, Decoder(shape).units(), index);

  std::vector<const WeightIndex::Tensor*> tensors;
  for (const SliceSource& slice : match.slices) tensors.push_back(&index.tensors[slice.tensor]);
  const StoredType type = options.type.value_or(tensors.front()->type);
  ModelFolderPlan plan = plan_of(options, texts_of(options, config.model, type));
  if (!index.metadata.empty()) plan.metadata = index.metadata;
  for (const WeightIndex::Tensor* t : tensors) {
    plan.tensors.push_back({t->name, options.type.value_or(t->type), t->shape, 0, 0});
  }
  ModelFolderWriter writer(std::move(plan));
  std::vector<FileHandle> files;
  for (const WeightIndex::File& file : index.files) files.push_back(folder.open_to_read(file.name));
  for (const WeightIndex::Tensor* t : tensors) copy_tensor(writer, *t, files[t->file]);
  writer.publish();
}

}  // namespace llmtrain
