#include "hf/match_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/json_reader.hpp"
#include "hf/convert.hpp"

namespace llmtrain {
namespace {

/// Problems of one kind; the first few are named.
class Problems {
 public:
  explicit Problems(std::string title) : title_(std::move(title)) {}
  void add(const std::string& what) {
    if (++count_ <= most_named) named_ += (named_.empty() ? "" : ", ") + what;
  }
  std::string text() const {
    if (count_ == 0) return "";
    const std::string rest = count_ > most_named ? fmt::format(" and {} more", count_ - most_named) : "";
    return fmt::format("\n  {}: {}{}", title_, named_, rest);
  }

 private:
  static constexpr int64_t most_named = 12;
  std::string title_, named_;
  int64_t count_ = 0;
};

class Matcher {
 public:
  Matcher(const DecoderShape& shape, const WeightIndex& index)
      : shape_(shape), index_(index), used_(index.tensors.size()) {
    // A model saved without its head has its names without the first part, as the published GPT-2.
    const std::string& embedding = shape.names.embedding;
    const std::string prefix = embedding.substr(0, embedding.find('.') + 1);
    if (!prefix.empty() && index.find(embedding + ".weight") == nullptr &&
        index.find(embedding.substr(prefix.size()) + ".weight") != nullptr) {
      prefix_ = prefix;
    }
  }

  WeightMatch match(const std::vector<UnitSpec>& units) {
    for (size_t u = 0; u < units.size(); ++u) {
      for (size_t p = 0; p < units[u].params.size(); ++p) {
        const ParamSpec& param = units[u].params[p];
        for (size_t s = 0; s < param.slices.size(); ++s) {
          const int64_t tensor = take(param, param.slices[s]);
          if (tensor < 0) continue;
          match_.slices.push_back({static_cast<int>(u), static_cast<int>(p), static_cast<int>(s), param.columns,
                                   static_cast<size_t>(tensor)});
        }
      }
    }
    for (size_t t = 0; t < used_.size(); ++t) {
      if (used_[t] == 0) judge_extra(t);
    }
    const std::string problems = missing_.text() + extra_.text() + wrong_shape_.text() + wrong_type_.text();
    if (!problems.empty()) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: the weights are not those of the model that config.json describes{}",
                                  index_.folder, problems));
    }
    if (!prefix_.empty()) match_.notes.push_back(fmt::format("names without '{}'", prefix_));
    if (rope_tables_ > 0) match_.notes.push_back(fmt::format("{} rope tables not needed", rope_tables_));
    if (masks_ > 0) match_.notes.push_back(fmt::format("{} attention masks not needed", masks_));
    return std::move(match_);
  }

 private:
  std::string stored_name(const std::string& name) const {
    return !prefix_.empty() && name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
  }

  int64_t take(const ParamSpec& param, const ParamSlice& slice) {
    const std::string name = stored_name(slice.name);
    const WeightIndex::Tensor* tensor = index_.find(name);
    if (tensor == nullptr) {
      missing_.add(name);
      return -1;
    }
    const size_t number = static_cast<size_t>(tensor - index_.tensors.data());
    used_[number] = 1;
    const std::vector<int64_t> expected = stored_shape(param, slice);
    if (tensor->shape != expected) {
      wrong_shape_.add(fmt::format("{} is {} instead of {}", name, shape_text(tensor->shape), shape_text(expected)));
    } else if (!is_weight_type(tensor->type)) {
      wrong_type_.add(fmt::format("{} is {}", name, name_of(tensor->type)));
    }
    return static_cast<int64_t>(number);
  }

  /// What no parameter asked for: known harmless things are noted, the rest is a problem.
  void judge_extra(size_t number) {
    const WeightIndex::Tensor& tensor = index_.tensors[number];
    const std::string& name = tensor.name;
    const bool gpt2 = shape_.config.family == ModelConfig::Family::gpt2;
    if (name.ends_with(".rotary_emb.inv_freq")) {
      ++rope_tables_;
    } else if (gpt2 && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))) {
      ++masks_;
    } else if (name == shape_.names.head + ".weight" && shape_.config.tie_embeddings) {
      const WeightIndex::Tensor* embedding = index_.find(stored_name(shape_.names.embedding + ".weight"));
      if (embedding == nullptr) return;  // missing, which is said
      match_.tied_head = static_cast<int64_t>(number);
      match_.embedding = embedding - index_.tensors.data();
      if (tensor.shape != embedding->shape) {
        wrong_shape_.add(fmt::format("{} is {}, the embedding that it is tied to {}", name, shape_text(tensor.shape),
                                     shape_text(embedding->shape)));
      } else if (!is_weight_type(tensor.type)) {
        wrong_type_.add(fmt::format("{} is {}", name, name_of(tensor.type)));
      }
    } else {
      extra_.add(printable(name));
    }
  }

  const DecoderShape& shape_;
  const WeightIndex& index_;
  std::vector<uint8_t> used_;
  std::string prefix_;  ///< that the stored names lack
  WeightMatch match_;
  Problems missing_{"missing"}, extra_{"not part of the model"}, wrong_shape_{"of another shape"},
      wrong_type_{"of a type other than F32, BF16, F16"};
  int64_t rope_tables_ = 0, masks_ = 0;
};

}  // namespace

std::vector<int64_t> stored_shape(const ParamSpec& param, const ParamSlice& slice) {
  if (param.columns == 1 && !param.decay) return {slice.rows};
  if (slice.transposed) return {param.columns, slice.rows};
  return {slice.rows, param.columns};
}

WeightMatch match_weights(const DecoderShape& shape, const std::vector<UnitSpec>& units, const WeightIndex& index) {
  return Matcher(shape, index).match(units);
}

}  // namespace llmtrain
