#include "hf/import_folder.hpp"

#include <utility>

#include "core/progress.hpp"
#include "hf/convert.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/match_weights.hpp"
#include "models/models.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {
namespace {

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

}  // namespace

void write_imported(const ImportOptions& options, const ModelConfig& model, const TokenIds& ids,
                    const SliceValues& values) {
  if (options.check_rows) options.check_rows(model.vocab_size);
  const std::vector<UnitSpec> units = Decoder(decoder_shape(model, model.vocab_size)).units();
  ModelFolderPlan plan;
  plan.path = options.output;
  plan.overwrite = options.overwrite;
  const std::string_view dtype = dtype_name(options.type);
  plan.texts = {{"config.json", write_hf_config(model, ids, dtype)},
                {"generation_config.json", write_generation_config(model, ids)}};
  plan.save_tokenizer = options.save_tokenizer;
  for_each_slice(units, [&](SlicePlace, const ParamSpec& param, const ParamSlice& slice) {
    plan.tensors.push_back({slice.name, options.type, stored_shape(param, slice), 0, 0});
  });
  Progress progress("importing", std::ssize(plan.tensors));
  ModelFolderWriter writer(std::move(plan));
  for_each_slice(units, [&](SlicePlace, const ParamSpec& param, const ParamSlice& slice) {
    std::vector<float> all = values(param, slice);
    if (slice.transposed) all = transposed(all, slice.rows, param.columns);
    writer.write(slice.name, 0, all.data(), static_cast<int64_t>(all.size()));
    progress.add();
  });
  writer.publish();
}

}  // namespace llmtrain
