#include "hf/weights/match_weights.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/convert.hpp"
#include "hf/weights/stored_names.hpp"
#include "params/tensor_blocks.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {
namespace {

/// Heads of other tasks: a folder with one besides a language model is trained and evaluated without it.
constexpr std::array<std::string_view, 4> other_heads = {"score.", "classifier.", "qa_outputs.", "v_head."};

std::vector<std::string_view> names_of(const WeightIndex& index) {
  std::vector<std::string_view> names;
  names.reserve(index.tensors.size());
  for (const WeightIndex::Tensor& tensor : index.tensors) names.push_back(tensor.name);
  return names;
}

class Matcher {
 public:
  Matcher(const DecoderShape& shape, const WeightIndex& index)
      : shape_(shape),
        index_(index),
        names_(match_names(names_of(index), shape.names, index.folder)),
        plain_names_(index.tensors.size()),
        used_(index.tensors.size()),
        embedding_(shape.names.embedding + ".weight"),
        head_(shape.names.head + ".weight"),
        score_(shape.names.score + ".weight"),
        score_bias_(shape.names.score + ".bias") {
    for (const auto& [name, number] : names_.number_of) plain_names_[number] = name;
  }

  WeightMatch match(const std::vector<UnitSpec>& units) {
    for_each_slice(units, [&](const SlicePlace& place, const ParamSpec& param, const ParamSlice& slice) {
      if (is_adapter_name(slice.name)) return;
      const int64_t tensor = take(param, slice);
      if (tensor < 0) return;
      note_storage(index_.tensors[static_cast<size_t>(tensor)], units[static_cast<size_t>(place.unit)].quantization,
                   slice.block.has_value());
      match_.slices.push_back({place.unit, place.param, place.slice, param.columns, static_cast<size_t>(tensor)});
    });
    use_tensors_of_other_ranks();
    for (size_t t = 0; t < used_.size(); ++t) {
      if (used_[t] == 0) check_unused(t);
    }
    const std::string problems = missing_.text() + extra_.text() + wrong_shape_.text() + wrong_type_.text();
    if (!problems.empty()) {
      throw UserError(
          ExitCode::bad_content,
          fmt::format("{}: the weights do not fit the model that config.json describes{}", index_.folder, problems));
    }
    match_.notes.insert(match_.notes.end(), storage_.begin(), storage_.end());
    if (!names_.added.empty()) match_.notes.push_back(fmt::format("names begin with '{}'", names_.added));
    if (!names_.missing.empty()) match_.notes.push_back(fmt::format("names without '{}'", names_.missing));
    if (ties_in_files() && !shape_.config.scores() && names_.find(embedding_) < 0) {
      match_.notes.push_back(fmt::format("the tied embedding is stored as {}", head_));
    }
    if (other_heads_ > 0) {
      match_.warnings.push_back(fmt::format(
          "{}: {} tensor{} of another head ({}) {} omitted; only the language model "
          "is used",
          index_.folder, other_heads_, other_heads_ == 1 ? "" : "s", other_head_, other_heads_ == 1 ? "is" : "are"));
    }
    if (rope_tables_ > 0) match_.notes.push_back(fmt::format("{} rope tables not needed", rope_tables_));
    if (more_tokens_ > 0) {
      match_.notes.push_back(fmt::format("{} tensors of layers that predict further tokens omitted", more_tokens_));
    }
    if (zero_biases_ > 0) match_.notes.push_back(fmt::format("{} biases of zeros not needed", zero_biases_));
    if (masks_ > 0) match_.notes.push_back(fmt::format("{} attention masks not needed", masks_));
    return std::move(match_);
  }

 private:
  bool ties_in_files() const { return shape_.config.tie_embeddings || shape_.unties_head; }
  void note_storage(const WeightIndex::Tensor& tensor, const std::optional<Quantization>& wanted, bool block) {
    if (tensor.mxfp4) storage_.insert("experts in mxfp4, dequantised");
    if (!tensor.has_codes()) return;
    const std::string_view type = tensor.storage();
    if (!wanted) {
      storage_.insert(fmt::format("matrices in {}, dequantised", type));
    } else if (tensor.quantized && tensor.quantized->are(*wanted) && !block) {
      storage_.insert(fmt::format("matrices in {}", type));
    } else {
      storage_.insert(fmt::format("matrices in {}, quantised again to {}", type, name_of(wanted->type)));
    }
  }
  /// Returns the tensor of a slice, or -1. The blocks of a tensor share it.
  int64_t take(const ParamSpec& param, const ParamSlice& slice) {
    const auto known = taken_.find(slice.name);
    if (known != taken_.end()) return known->second;
    return taken_[slice.name] = find_tensor(param, slice);
  }

  int64_t find_tensor(const ParamSpec& param, const ParamSlice& slice) {
    const std::string& name = slice.name;
    int64_t found = names_.find(name);
    // A file can hold either one of a tied pair.
    if (name == head_ && shape_.unties_head && names_.find(embedding_) >= 0) found = names_.find(embedding_);
    if (found < 0 && name == embedding_ && ties_in_files()) found = names_.find(head_);
    if (shape_.saved_tables.contains(name)) {
      if (found < 0) return -1;
      used_[static_cast<size_t>(found)] = 1;
      match_.replaced.emplace_back(name, static_cast<size_t>(found));
      return -1;
    }
    if (found < 0 && shape_.new_head && (name == score_ || name == score_bias_)) return -1;
    if (found < 0) {
      const bool other_is_there = name == head_ ? names_.find(embedding_) >= 0 : names_.find(head_) >= 0;
      const bool of_pair = (name == head_ || name == embedding_) && !shape_.config.tie_embeddings && other_is_there;
      missing_.add(of_pair ? name +
                                 " (if head and embedding are one matrix, config.json must set "
                                 "tie_word_embeddings: true)"
                           : name);
      return -1;
    }
    const auto number = static_cast<size_t>(found);
    const WeightIndex::Tensor* tensor = &index_.tensors[number];
    used_[number] = 1;
    std::vector<int64_t> expected = stored_shape(param, slice);
    if (tensor->has_codes()) expected = {block_of(param, slice).rows, block_of(param, slice).columns};
    if (shape_.stored_rows > 0 && shape_.has_row_per_token(name)) {
      match_.notes.push_back(
          fmt::format("{} gets {} rows, the mean of the others", name, expected.front() - shape_.stored_rows));
      expected.front() = shape_.stored_rows;
    }
    if (tensor->shape != expected) {
      wrong_shape_.add(fmt::format("{} is {} instead of {}", name, shape_text(tensor->shape), shape_text(expected)));
    } else if (!is_weight_type(tensor->type)) {
      wrong_type_.add(fmt::format("{} is {}", name, name_of(tensor->type)));
    }
    return static_cast<int64_t>(number);
  }

  /// True for a tensor of a layer beyond the model's that joins a state with the embedding of a token (DeepSeek-V3,
  /// arXiv:2412.19437, section 2.2); Transformers does not read these layers either.
  bool predicts_more_tokens(const std::string& name) const {
    constexpr std::string_view layers = "model.layers.";
    if (shape_.config.family != ModelConfig::Family::deepseek_v3 || !name.starts_with(layers)) return false;
    const size_t end = name.find('.', layers.size());
    return end != std::string::npos && names_.find(name.substr(0, end) + ".eh_proj.weight") >= 0;
  }

  /// Ranks that share matrices or experts have whole experts each: the tensors of the others belong to the model as
  /// well.
  void use_tensors_of_other_ranks() {
    if (shape_.has_all_blocks()) return;
    for_each_slice(Decoder(shape_.whole()).units(), [&](const SlicePlace&, const ParamSpec&, const ParamSlice& slice) {
      if (const int64_t tensor = names_.find(slice.name); tensor >= 0) used_[static_cast<size_t>(tensor)] = 1;
    });
  }

  /// True for a bias that the model does not have, beside a packed matrix: AutoGPTQ wrote one for every matrix.
  bool is_bias_of_zeros(const std::string& stored) const {
    if (!stored.ends_with(".bias")) return false;
    const WeightIndex::Tensor* matrix = index_.find(stored.substr(0, stored.size() - 4) + "weight");
    return matrix != nullptr && matrix->packed && matrix->packed->zero_bias;
  }

  /// Sorts unused tensors: known harmless ones give a note, the others a problem.
  void check_unused(size_t number) {
    const WeightIndex::Tensor& tensor = index_.tensors[number];
    const std::string& name = plain_names_[number];
    const auto is_mask = [&](ModelConfig::Family family, const std::string& attention) {
      return shape_.config.family == family &&
             (name.ends_with(attention + ".bias") || name.ends_with(attention + ".masked_bias"));
    };
    if (name.ends_with(".rotary_emb.inv_freq")) {
      ++rope_tables_;
    } else if (is_mask(ModelConfig::Family::gpt2, ".attn") || is_mask(ModelConfig::Family::gpt_neox, ".attention")) {
      ++masks_;
    } else if (predicts_more_tokens(name)) {
      ++more_tokens_;
    } else if (name == head_ && shape_.config.scores()) {
      match_.notes.push_back(fmt::format("{} is not needed", head_));
    } else if (name == head_ && ties_in_files()) {
      match_.tied_head = static_cast<int64_t>(number);
      match_.embedding = names_.find(embedding_);  // present, since the head was not used in its place
      const WeightIndex::Tensor& embedding = index_.tensors[static_cast<size_t>(match_.embedding)];
      if (tensor.shape != embedding.shape) {
        wrong_shape_.add(fmt::format("{} is {}, the embedding that it is tied to {}", name, shape_text(tensor.shape),
                                     shape_text(embedding.shape)));
      } else if (!is_weight_type(tensor.type)) {
        wrong_type_.add(fmt::format("{} is {}", name, name_of(tensor.type)));
      }
    } else if (is_bias_of_zeros(tensor.name)) {
      ++zero_biases_;
    } else if (std::ranges::any_of(other_heads, [&](std::string_view head) { return name.starts_with(head); })) {
      if (other_heads_++ == 0) other_head_ = printable(tensor.name);
    } else {
      extra_.add(printable(tensor.name));
    }
  }

  const DecoderShape& shape_;
  const WeightIndex& index_;
  StoredNames names_;
  std::vector<std::string> plain_names_;  ///< name of each tensor in the model
  std::vector<uint8_t> used_;
  std::map<std::string, int64_t, std::less<>> taken_;  ///< by name of a slice
  std::string embedding_, head_;                       ///< the pair that can be tied
  std::string score_, score_bias_;
  std::string other_head_;         ///< first tensor of another head
  std::set<std::string> storage_;  ///< notes on quantised matrices
  WeightMatch match_;
  Problems missing_{"missing"}, extra_{"not in the model"}, wrong_shape_{"with another shape"},
      wrong_type_{"with a type other than F32, BF16, F16"};
  int64_t rope_tables_ = 0, masks_ = 0, other_heads_ = 0, more_tokens_ = 0, zero_biases_ = 0;
};

}  // namespace

std::vector<int64_t> stored_shape(const ParamSpec& param, const ParamSlice& slice) {
  const TensorBlock whole = block_of(param, slice);
  if (param.columns == 1 && !param.decay) return {whole.rows};
  if (slice.transposed) return {whole.columns, whole.rows};
  return {whole.rows, whole.columns};
}

WeightMatch match_weights(const DecoderShape& shape, const std::vector<UnitSpec>& units, const WeightIndex& index) {
  return Matcher(shape, index).match(units);
}

}  // namespace llmtrain
