#include "hf/adapters/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/parallel_for.hpp"
#include "core/progress.hpp"
#include "hf/adapters/adapter_files.hpp"
#include "hf/adapters/saved_tables.hpp"
#include "hf/config/config_json.hpp"
#include "hf/convert.hpp"
#include "hf/quantized/quantize_model.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/stored_slice.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"
#include "parallel/job/launcher.hpp"

namespace llmtrain {
namespace {

constexpr int64_t read_elements_at_once = int64_t{1} << 20;

using Values = std::vector<float>;

/// A matrix of the adapter or of the model, read whole.
Values read_whole(const StoredSlice& slice, int threads) {
  const int64_t elements = slice.rows * slice.columns;
  Values values(static_cast<size_t>(elements));
  const auto blocks = static_cast<size_t>((elements + read_elements_at_once - 1) / read_elements_at_once);
  parallel_for(blocks, threads, [&](size_t i) {
    const int64_t begin = static_cast<int64_t>(i) * read_elements_at_once;
    const int64_t end = std::min(begin + read_elements_at_once, elements);
    read_slice(slice, begin, end, values.data() + begin);
  });
  return values;
}

Values transpose(const Values& values, int64_t rows, int64_t columns) {
  Values out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

/// The last part of a path or of a name such as meta-llama/Llama-3.2-1B; of a snapshot in the Hugging Face cache, that
/// of the model's name.
std::string model_name(const std::string& path) {
  std::filesystem::path place(path);
  if (!place.has_filename()) place = place.parent_path();
  if (place.parent_path().filename() == "snapshots") place = place.parent_path().parent_path();
  std::string name = place.filename().string();
  if (name.starts_with("models--")) name = name.substr(name.rfind("--") + 2);
  return name;
}

class Merger {
 public:
  Merger(const std::string& folder, const std::string& adapter, bool any_model, MergeBase base)
      : folder_(FolderHandle::open(folder)),
        index_(read_weight_index(folder_)),
        any_model_(any_model),
        base_(base),
        threads_(choose_threads(find_thread_facts(1)).threads) {
    const HfConfig config = parse_hf_config(folder_.open_to_read("config.json").read_text(max_config_bytes),
                                            folder_.path_of("config.json"));
    model_ = config.model;
    warnings_ = config.warnings;
    const bool new_head = take_head(
        parse_adapter_config(read_adapter_config(adapter), adapter + "/" + adapter_config_name), adapter, model_);
    const DecoderShape base_shape = [&] {
      DecoderShape shape = decoder_shape(model_, model_.vocab_size);
      shape.new_head = new_head;
      return shape;
    }();
    head_ = base_shape.names.head + ".weight";
    embedding_ = base_shape.names.embedding + ".weight";
    if (new_head) added_ = {base_shape.names.score + ".weight"};
    if (new_head && model_.head == ModelConfig::Head::token_score) added_.push_back(base_shape.names.score + ".bias");
    split_fused_experts(index_, base_shape);
    const WeightMatch base_match = match_weights(base_shape, Decoder(base_shape).units(), index_);
    warnings_.insert(warnings_.end(), base_match.warnings.begin(), base_match.warnings.end());
    adapter_ = AdapterFolder::open(adapter, base_shape);
    warnings_.insert(warnings_.end(), adapter_.warnings.begin(), adapter_.warnings.end());
    trained_on_ = quantization_of_training();
    check_base();
    check_name(folder);
    adapter_.config.lora.path = adapter;
    find_saved_tables(adapter, adapter_.part, base_shape, folder).use(adapter_.config.lora, model_);
    DecoderShape shape = decoder_shape(model_, model_.vocab_size);
    shape.new_head = new_head;
    match(shape);
    for (const WeightIndex::File& file : index_.files) files_.push_back(folder_.open_to_read(file.name));
  }

  std::vector<std::string> write(const ExportOptions& options, const std::function<void()>& pause) {
    const StoredType type = index_.tensors[match_.slices.front().tensor].type;
    ModelFolderPlan plan = folder_plan(options, model_, type);
    if (!index_.metadata.empty()) plan.metadata = index_.metadata;
    if (base_ != MergeBase::unnamed) {
      plan.metadata["merge_base"] = base_ == MergeBase::bits16 ? "16bit" : "dequantized";
    }
    // Quantised matrices lie as in the model, others may be transposed.
    std::vector<bool> turned(index_.tensors.size());
    for (const SliceSource& s : match_.slices) {
      turned[s.tensor] = index_.tensors[s.tensor].has_codes() && slice_of_model(s).transposed;
    }
    std::vector<bool> done(index_.tensors.size());
    for (const auto& [name, t] : match_.replaced) done[t] = true;
    for (size_t t = 0; t < index_.tensors.size(); ++t) {
      const WeightIndex::Tensor& tensor = index_.tensors[t];
      if (!is_weight_type(tensor.type) || is_left_out(tensor)) continue;
      std::vector<int64_t> shape = tensor.shape;
      if (turned[t]) std::ranges::reverse(shape);
      if (is_table(t)) shape.front() = model_.vocab_size;
      plan.tensors.push_back({tensor.name, tensor.type, std::move(shape), 0, 0});
    }
    for (const std::string& name : added_) plan.tensors.push_back({name, type, stored_.at(name).tensor->shape, 0, 0});
    if (untied_) add_second_table(plan);
    ModelFolderWriter writer(std::move(plan));
    for (const std::string& name : added_) write_values(writer, name, read_stored(name));
    for (const auto& [name, t] : match_.replaced) write_table(writer, name, t);
    Progress progress("merging", std::ssize(match_.slices));
    for (const SliceSource& s : match_.slices) {
      if (pause) pause();
      done[s.tensor] = true;
      write_slice(writer, s);
      progress.add();
    }
    for (size_t t = 0; t < done.size(); ++t) {
      const WeightIndex::Tensor& tensor = index_.tensors[t];
      if (done[t] || !is_weight_type(tensor.type) || is_left_out(tensor)) continue;
      if (static_cast<int64_t>(t) == match_.tied_head && (adapter_.part.trains_tied_head || untied_)) continue;
      const auto file_of = [&](size_t number) -> const FileHandle& { return files_[number]; };
      write_values(writer, tensor.name, read_whole(whole_tensor(tensor, file_of), threads_));
    }
    check_hash();
    writer.publish();
    return warnings_;
  }

 private:
  /// Finds the tensors of the adapter, and those of the model, which has two tables where an adapter makes two of a
  /// tied one.
  void match(DecoderShape& shape) {
    adapt(shape, adapter_.config.lora);
    const std::vector<UnitSpec> adapted = Decoder(shape).units();
    const WeightMatch stored = match_adapter(adapter_, shape, adapted);
    adapter_file_.emplace(FolderHandle::open(adapter_.folder).open_to_read(adapter_weights_name));
    const WeightMatch tables = match_saved_tables(shape, adapted, adapter_.index);
    for (const std::vector<SliceSource>* slices : {&stored.slices, &tables.slices}) {
      for (const SliceSource& s : *slices) {
        const ParamSpec& param = adapted[static_cast<size_t>(s.unit)].params[static_cast<size_t>(s.param)];
        const ParamSlice& slice = param.slices[static_cast<size_t>(s.slice)];
        const auto file_of = [&](size_t) -> const FileHandle& { return *adapter_file_; };
        stored_[slice.name] =
            stored_slice(adapter_.index.tensors[s.tensor], file_of, slice.rows, param.columns, slice.transposed);
      }
    }
    require_one_tied_matrix(stored);
    for (const UnitSpec& unit : adapted) {
      for (const ParamSpec& param : unit.params) {
        for (const ParamSlice& slice : param.slices) of_run_.insert(slice.name);
      }
    }
    const auto has_adapter = [&](const std::string& table) {
      return adapter_.part.modules.contains(std::string(parent_module(table)));
    };
    if (shape.config.ties_head() && (has_adapter(head_) || has_adapter(embedding_))) {
      shape.untie_head();
      if (shape.saved_tables.contains(embedding_)) {
        shape.saved_tables.names.push_back(head_);
        stored_[head_] = stored_.at(embedding_);
      }
    }
    untied_ = shape.unties_head;
    if (untied_) {
      warnings_.push_back(
          fmt::format("{}: it makes two matrices of the model's embedding and head, and the merged model has both "
                      "(tie_word_embeddings: false)",
                      adapter_.folder));
    }
    model_ = shape.config;
    shape.adapters = {};
    shape.trained = {};
    units_ = Decoder(shape).units();
    match_ = match_weights(shape, units_, index_);
  }

  /// True for a tensor of the model that is a table with a row for each token.
  bool is_table(size_t tensor) const {
    const auto replaced = std::ranges::find(match_.replaced, tensor, &std::pair<std::string, size_t>::second);
    return replaced != match_.replaced.end() || (untied_ && static_cast<int64_t>(tensor) == match_.tied_head);
  }

  /// Name of a tensor in the merged files. Where two tables are made of a tensor, the other one is named like it.
  std::string name_in_files(const std::string& name, size_t tensor) const {
    const std::string& stored = index_.tensors[tensor].name;
    if (!untied_ || (name != head_ && name != embedding_) || stored.ends_with(name)) return stored;
    const std::string& other = name == head_ ? embedding_ : head_;
    const std::string short_other = other.substr(other.find('.') + 1), short_name = name.substr(name.find('.') + 1);
    if (name == head_ && match_.tied_head >= 0) return index_.tensors[static_cast<size_t>(match_.tied_head)].name;
    if (stored.ends_with(other)) return stored.substr(0, stored.size() - other.size()) + name;
    if (name == embedding_ || !stored.ends_with(short_other)) return stored.ends_with(short_name) ? stored : name;
    return stored.substr(0, stored.size() - short_other.size()) + name;  // heads have their full name
  }

  void add_second_table(ModelFolderPlan& plan) const {
    const auto add = [&](const std::string& name, size_t tensor) {
      const std::string file_name = name_in_files(name, tensor);
      const auto known = std::ranges::find(plan.tensors, file_name, &StoredTensor::name);
      if (known == plan.tensors.end()) {
        plan.tensors.push_back({file_name, index_.tensors[tensor].type, {model_.vocab_size, model_.d_model}, 0, 0});
      }
    };
    for (const auto& [name, tensor] : match_.replaced) add(name, tensor);
    for (const SliceSource& s : match_.slices) {
      const std::string& name = slice_of_model(s).name;
      if (name == head_ || name == embedding_) add(name, s.tensor);
    }
  }

  /// A table of the adapter's folder in the place of the model's.
  void write_table(ModelFolderWriter& writer, const std::string& name, size_t tensor) {
    Values values = read_stored(name);
    if (of_run_.contains(name) && !adapter_.part.trained.contains(name)) {
      hash_ += hash_elements(hash_key(name), 0, values.data(), std::ssize(values));
    }
    merge({name, 0, model_.vocab_size}, model_.d_model, values);
    require_finite(values, fmt::format("{}: the merged {}", adapter_.folder, printable(name)));
    write_values(writer, name_in_files(name, tensor), values);
    const bool tied = !untied_ && match_.tied_head >= 0;
    if (tied) write_values(writer, index_.tensors[static_cast<size_t>(match_.tied_head)].name, values);
  }

  /// A model that scores has no other head.
  bool is_left_out(const WeightIndex::Tensor& tensor) const {
    return model_.scores() && (tensor.name == head_ || tensor.name.ends_with("." + head_));
  }

  const ParamSlice& slice_of_model(const SliceSource& s) const {
    return units_[static_cast<size_t>(s.unit)]
        .params[static_cast<size_t>(s.param)]
        .slices[static_cast<size_t>(s.slice)];
  }

  /// The quantised storage of the model that the adapter was trained on, as far as its files or its model's tell.
  std::string quantization_of_training() const {
    const auto said = adapter_.index.metadata.find(base_quantization_key);
    if (said != adapter_.index.metadata.end()) return printable(said->second);
    std::error_code ignored;
    const std::string& base = adapter_.config.base;
    if (base.empty() || !std::filesystem::is_regular_file(std::filesystem::path(base) / "config.json", ignored)) {
      return "";
    }
    try {
      const FolderHandle folder = FolderHandle::open(base);
      const std::string text = folder.open_to_read("config.json").read_text(max_config_bytes);
      return without_quantization(text, base) == text ? "" : fmt::format("that of {}", printable(base));
    } catch (const UserError&) {
      return "";  // another folder of that name
    }
  }

  /// Checks that base_ names what the folder has, and that an adapter of a quantised model gets one that is named.
  void check_base() {
    std::string stored;
    for (const WeightIndex::Tensor& tensor : index_.tensors) {
      if (!tensor.has_codes() || !stored.empty()) continue;
      stored = tensor.quantized ? description_of(tensor.quantized->quantization) : std::string(tensor.storage());
    }
    if (base_ == MergeBase::as_stored) {
      base_ = !stored.empty() ? MergeBase::dequantized : trained_on_.empty() ? MergeBase::unnamed : MergeBase::bits16;
    }
    const auto refuse_base = [&](const std::string& what) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: {}", index_.folder, what));
    };
    if (stored.empty() && base_ == MergeBase::dequantized) {
      refuse_base(
          "the weights are not quantised, so --base dequantized has none to dequantise; name the quantised folder "
          "that the adapter was trained on (llmtool quantize writes it)");
    }
    if (!stored.empty() && base_ != MergeBase::dequantized) {
      refuse_base(
          "the weights are quantised. Give --base dequantized to merge the adapter into the weights that it was "
          "trained on, or name the original 16-bit model with --model and --base 16bit, which gives another model");
    }
    if (stored.empty() && base_ == MergeBase::unnamed && !trained_on_.empty()) {
      refuse_base(fmt::format(
          "the weights are not quantised, and the adapter {} was trained on quantised ones ({}). Give --base 16bit to "
          "merge it into these, which gives another model than the one that was trained, or name the quantised "
          "folder with --model and --base dequantized",
          adapter_.folder, trained_on_));
    }
    const auto said = adapter_.index.metadata.find(base_quantization_key);
    if (!stored.empty() && !any_model_ && said != adapter_.index.metadata.end() && said->second != stored) {
      refuse(fmt::format("the adapter was trained on weights quantised to {}, and those of {} are quantised to {}",
                         trained_on_, index_.folder, stored));
    }
    if (!stored.empty()) warnings_.push_back(dequantized_note(index_.folder));
  }

  StoredSlice slice_of(const WeightIndex::Tensor& tensor, int64_t rows, int64_t columns, bool transposed) const {
    const auto file_of = [&](size_t number) -> const FileHandle& { return files_[number]; };
    return stored_slice(tensor, file_of, rows, columns, transposed);
  }

  /// A trained matrix of embedding and head is stored twice. PEFT may have trained the two apart.
  void require_one_tied_matrix(const WeightMatch& match) const {
    if (match.tied_head < 0) return;
    const WeightIndex::Tensor& embedding = adapter_.index.tensors[static_cast<size_t>(match.embedding)];
    const WeightIndex::Tensor& head = adapter_.index.tensors[static_cast<size_t>(match.tied_head)];
    const int64_t elements = head.numel();
    Values left, right;
    for (int64_t begin = 0; begin < elements; begin += read_elements_at_once) {
      const int64_t end = std::min(begin + read_elements_at_once, elements);
      left.resize(static_cast<size_t>(end - begin));
      right.resize(left.size());
      read_slice({&embedding, &*adapter_file_, elements, 1, false}, begin, end, left.data());
      read_slice({&head, &*adapter_file_, elements, 1, false}, begin, end, right.data());
      if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0) continue;
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: {} differs from {}, although the model uses one matrix for both. Merge the "
                                  "adapter with PEFT, which makes two matrices of them",
                                  adapter_file_->path(), printable(head.name), printable(embedding.name)));
    }
  }

  Values read_stored(const std::string& name) const {
    const StoredSlice& slice = stored_.at(name);
    Values values = read_whole(slice, threads_);
    require_finite(values, fmt::format("{}: {}", slice.file->path(), printable(slice.tensor->name)));
    return values;
  }

  static void require_finite(const Values& values, const std::string& what) {
    if (std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) return;
    throw UserError(ExitCode::bad_content, what + " has a value that is not finite");
  }

  static void write_values(ModelFolderWriter& writer, const std::string& name, const Values& values) {
    writer.write(name, 0, values.data(), static_cast<int64_t>(values.size()));
  }

  void write_slice(ModelFolderWriter& writer, const SliceSource& s) {
    const ParamSpec& param = units_[static_cast<size_t>(s.unit)].params[static_cast<size_t>(s.param)];
    const ParamSlice& slice = param.slices[static_cast<size_t>(s.slice)];
    const WeightIndex::Tensor& tensor = index_.tensors[s.tensor];
    Values values;
    if (adapter_.part.trained.contains(slice.name)) {
      values = read_stored(slice.name);
    } else {
      values = read_whole(slice_of(tensor, slice.rows, param.columns, slice.transposed), threads_);
      if (of_run_.contains(slice.name)) {
        hash_ += hash_elements(hash_key(slice.name), 0, values.data(), std::ssize(values));
      }
      merge(slice, param.columns, values);
      require_finite(values, fmt::format("{}: the merged {}", adapter_.folder, printable(slice.name)));
    }
    if (slice.transposed) values = transpose(values, slice.rows, param.columns);
    write_values(writer, name_in_files(slice.name, s.tensor), values);
    const bool tied = adapter_.part.trains_tied_head && static_cast<int64_t>(s.tensor) == match_.embedding;
    if (tied && match_.tied_head >= 0) {
      write_values(writer, index_.tensors[static_cast<size_t>(match_.tied_head)].name, values);
    }
  }

  void merge(const ParamSlice& slice, int64_t columns, Values& values) const {
    if (!slice.name.ends_with(".weight")) return;
    const std::string module = slice.name.substr(0, slice.name.rfind('.'));
    const auto found = adapter_.part.modules.find(module);
    if (found == adapter_.part.modules.end()) return;
    const AdapterShape& shape = found->second;
    // An embedding's A has a row for each of the table's, and B one for each of its columns.
    const bool table = stored_.contains(lora_embedding_a_name(module));
    const Values a = table ? transpose(read_stored(lora_embedding_b_name(module)), columns, shape.rank)
                           : read_stored(lora_a_name(module));
    const Values b = read_stored(table ? lora_embedding_a_name(module) : lora_b_name(module));
    const Values magnitude = shape.dora ? read_stored(lora_magnitude_name(module)) : Values();
    const auto scale = static_cast<float>(shape.scale);
    parallel_for(static_cast<size_t>(slice.rows), threads_, [&](size_t row) {
      float* w = values.data() + static_cast<int64_t>(row) * columns;
      Values delta(static_cast<size_t>(columns));
      for (int64_t k = 0; k < shape.rank; ++k) {
        const float factor = b[row * static_cast<size_t>(shape.rank) + static_cast<size_t>(k)];
        const float* from = a.data() + k * columns;
        for (int64_t c = 0; c < columns; ++c) delta[static_cast<size_t>(c)] += factor * from[c];
      }
      double squares = 0;
      for (int64_t c = 0; c < columns; ++c) {
        w[c] += scale * delta[static_cast<size_t>(c)];
        squares += static_cast<double>(w[c]) * static_cast<double>(w[c]);
      }
      if (!shape.dora || squares == 0) return;
      const auto factor = static_cast<float>(static_cast<double>(magnitude[row]) / std::sqrt(squares));
      for (int64_t c = 0; c < columns; ++c) w[c] *= factor;
    });
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {}. Name its model, or give --force if this one is meant", adapter_.folder, what));
  }

  bool has_hash() const { return adapter_.index.metadata.contains(base_hash_key); }

  void check_name(const std::string& folder) {
    const std::string& base = adapter_.config.base;
    if (any_model_ || has_hash() || base.empty() || model_name(base) == model_name(folder)) return;
    std::error_code ignored;
    if (model_name(std::filesystem::canonical(folder, ignored).string()) == model_name(base)) return;
    if (std::filesystem::equivalent(base, folder, ignored)) return;
    const std::string what =
        fmt::format("the adapter was trained on {} (base_model_name_or_path), not on {}", printable(base), folder);
    if (base_ == MergeBase::unnamed) refuse(what);
    warnings_.push_back(fmt::format("{}: {}; nothing shows that the two are one model", adapter_.folder, what));
  }

  void check_hash() {
    if (any_model_ || !has_hash()) return;
    const std::string hash = fmt::format("{:016x}", hash_), &theirs = adapter_.index.metadata.at(base_hash_key);
    if (hash == theirs) return;
    if (!trained_on_.empty()) {  // quantised weights have another hash than those that they were made of
      warnings_.push_back(
          fmt::format("{}: the adapter was trained on {}, quantised ({}); nothing shows that {} is the same model",
                      adapter_.folder, printable(adapter_.config.base), trained_on_, index_.folder));
      return;
    }
    refuse(fmt::format("the adapter was trained with other weights than those of {}: {} (hash {} instead of {})",
                       index_.folder, printable(adapter_.config.base), printable(theirs), hash));
  }

  FolderHandle folder_;
  WeightIndex index_;
  bool any_model_;
  MergeBase base_;
  int threads_;
  ModelConfig model_;
  std::vector<UnitSpec> units_;
  WeightMatch match_;
  AdapterFolder adapter_;
  std::optional<FileHandle> adapter_file_;
  std::map<std::string, StoredSlice> stored_;  ///< tensors of the adapter by their names in the model
  std::vector<FileHandle> files_;
  std::string head_, embedding_;  ///< of the language model
  NameSet of_run_;                ///< tensors of the model with the adapters, whose frozen ones are hashed
  bool untied_ = false;  ///< embedding and head are one matrix in the model's files, and two in the merged ones
  std::vector<std::string> added_;  ///< tensors that the adapter has and the model's files lack
  std::string trained_on_;          ///< quantisation of the model that the adapter was trained on, or ""
  std::vector<std::string> warnings_;
  uint64_t hash_ = 0;
};

}  // namespace

std::vector<std::string> merge_adapter(const std::string& folder, const std::string& adapter,
                                       const ExportOptions& options, const std::function<void()>& pause, bool any_model,
                                       MergeBase base) {
  return Merger(folder, adapter, any_model, base).write(options, pause);
}

}  // namespace llmtrain
