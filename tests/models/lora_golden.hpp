#pragma once
// A model with the adapters of a case of tests/reference/make_lora_goldens.py.

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "models/test_model.hpp"

namespace llmtrain::test {

using Parameters = std::map<std::string, std::vector<float>>;

inline std::vector<std::string> lora_cases() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(Golden::folder() / "../lora")) {
    names.push_back(file.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

inline std::set<std::string> lines(const std::string& text) {
  std::set<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    all.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

struct AdaptedModel {
  explicit AdaptedModel(const std::string& name)
      : lora("../lora/" + name), golden(lora.text("model")), rows(rows_of(golden)), shape(shape_of(golden)) {
    const std::vector<std::string> names = lora.names("grads");
    trained = {names.begin(), names.end()};
    shape.trained = [this](const std::string& parameter) { return trained.contains(parameter); };
    adapter = {lora.integer("rank"), lora.number("scale"),        0,
               lora.flag("dora"),    AdapterShape::Init::kaiming, lora.number("learning_rate_ratio")};
    const std::set<std::string> modules = lines(lora.text("modules"));
    shape.adapters = [this, modules](const std::string& module) {
      return modules.contains(module) ? std::optional(adapter) : std::nullopt;
    };
    if (shape.config.ties_head() && trained.contains(head())) shape.untie_head();
    tokens = static_cast<double>(TestModel::trained({rows}));
  }
  AdaptedModel(const AdaptedModel&) = delete;
  AdaptedModel& operator=(const AdaptedModel&) = delete;

  Parameters base() const {
    Parameters out;
    for (const std::string& name : golden.names("params")) out[name] = golden.floats("params/" + name).values;
    if (shape.unties_head) out[head()] = out.at(shape.names.embedding + ".weight");
    return out;
  }
  Parameters parameters() const {
    Parameters out = base();
    for (const std::string& name : lora.names("params")) out[name] = lora.floats("params/" + name).values;
    return out;
  }
  TestModel model(DType compute = DType::f32, Recompute recompute = Recompute::none, const Ranks& ranks = {}) const {
    return {shape, compute, static_cast<int64_t>(rows.ids.size()), recompute, ranks};
  }

  std::string head() const { return shape.names.head + ".weight"; }

  Golden lora, golden;
  Rows rows;
  DecoderShape shape;
  std::set<std::string> trained;  ///< names of parameters
  AdapterShape adapter;
  double tokens = 0;
};

}  // namespace llmtrain::test
