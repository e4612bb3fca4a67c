#include "hf/weights/placed_experts.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/weights/match_weights.hpp"
#include "hf/weights/stored_names.hpp"
#include "models/expert_places.hpp"

namespace llmtrain {
namespace {

constexpr int64_t mxfp4_block = 32;  ///< elements with one scale

class Placer {
 public:
  Placer(WeightIndex& index, const DecoderShape& shape) : index_(index) {
    std::vector<std::string_view> names;
    names.reserve(index.tensors.size());
    for (const WeightIndex::Tensor& tensor : index.tensors) names.push_back(tensor.name);
    names_ = match_names(names, shape.names, index.folder);
    replaced_.resize(index.tensors.size());
  }

  void place(const ExpertPlaces& places) {
    for (const auto& [name, place] : places) {
      if (const auto codes = find_codes(place)) {
        add_codes(name, place, index_.tensors[codes->first], index_.tensors[codes->second]);
        continue;
      }
      const int64_t number = find(place.tensor, place.shape);
      if (number >= 0) add(name, place, index_.tensors[static_cast<size_t>(number)]);
    }
    const std::string problems = missing_.text() + wrong_shape_.text() + wrong_type_.text();
    if (!problems.empty()) {
      throw UserError(ExitCode::bad_content,
                      index_.folder + ": the weights do not fit the model that config.json describes" + problems);
    }
    for (size_t t = 0; t < replaced_.size(); ++t) {
      if (!replaced_[t]) added_.push_back(std::move(index_.tensors[t]));
    }
    std::ranges::sort(added_, {}, &WeightIndex::Tensor::name);
    index_.tensors = std::move(added_);
  }

 private:
  /// Returns the number of a tensor, or -1.
  int64_t find(const std::string& name, const std::vector<int64_t>& shape) {
    const auto [known, first] = numbers_.try_emplace(name, -1);
    if (!first) return known->second;
    const int64_t number = names_.find(name);
    if (number < 0) {
      missing_.add(name);
      return -1;
    }
    const WeightIndex::Tensor& tensor = index_.tensors[static_cast<size_t>(number)];
    if (tensor.shape != shape || tensor.quantized) {
      wrong_shape_.add(printable(tensor.name) + " is " + shape_text(tensor.shape) + " instead of " + shape_text(shape));
      return -1;
    }
    replaced_[static_cast<size_t>(number)] = true;
    return known->second = number;
  }

  /// Returns the numbers of the codes and scales of a matrix, if the files have these.
  std::optional<std::pair<size_t, size_t>> find_codes(const ExpertPlace& place) {
    const std::string blocks = place.tensor + "_blocks", scales = place.tensor + "_scales";
    if (place.shape.size() != 3 || (names_.find(blocks) < 0 && names_.find(scales) < 0)) return std::nullopt;
    const int64_t rows = place.shape[2], of_row = place.shape[1] / mxfp4_block;
    const int64_t codes = find(blocks, {place.shape[0], rows, of_row, mxfp4_block / 2});
    const int64_t exponents = find(scales, {place.shape[0], rows, of_row});
    if (codes < 0 || exponents < 0) return std::nullopt;
    for (const int64_t number : {codes, exponents}) {
      const WeightIndex::Tensor& tensor = index_.tensors[static_cast<size_t>(number)];
      if (tensor.type != StoredType::U8)
        wrong_type_.add(printable(tensor.name) + " is " + std::string(name_of(tensor.type)));
    }
    if (place.shape[1] % mxfp4_block != 0) wrong_shape_.add(blocks + " has rows of a part of a block");
    return std::pair(static_cast<size_t>(codes), static_cast<size_t>(exponents));
  }

  /// A matrix of the model is a matrix of codes: some of its rows, which alternate with those of other parts.
  void add_codes(const std::string& name, const ExpertPlace& place, const WeightIndex::Tensor& codes,
                 const WeightIndex::Tensor& scales) {
    const int64_t of_row = place.columns / mxfp4_block;
    const int64_t first = (place.begin / place.columns + (place.first - place.begin)) * of_row;
    WeightIndex::Tensor part;
    part.name = stored_name(name);
    part.type = StoredType::BF16;
    part.shape = {place.rows, place.columns};
    part.file = codes.file;
    part.begin = codes.begin + first * (mxfp4_block / 2);
    part.end = codes.end;
    part.mxfp4 = WeightIndex::BlockScales{scales.file, scales.begin + first, place.row_stride * of_row};
    added_.push_back(std::move(part));
  }

  std::string stored_name(const std::string& name) const { return names_.added + name.substr(names_.missing.size()); }

  void add(const std::string& name, const ExpertPlace& place, const WeightIndex::Tensor& whole) {
    const int64_t bytes = bits_of(whole.type) / 8;
    const int64_t last = (place.rows - 1) * place.row_stride + (place.columns - 1) * place.column_stride;
    WeightIndex::Tensor part = whole;
    part.name = stored_name(name);
    part.shape = {place.rows, place.columns};
    part.begin = whole.begin + place.first * bytes;
    part.end = part.begin + (last + 1) * bytes;
    part.strides = WeightIndex::Strides{place.row_stride, place.column_stride};
    added_.push_back(std::move(part));
  }

  WeightIndex& index_;
  StoredNames names_;
  std::map<std::string, int64_t, std::less<>> numbers_;  ///< of tensors in the index
  std::vector<bool> replaced_;                           ///< by tensor of the index
  std::vector<WeightIndex::Tensor> added_;
  Problems missing_{"missing"}, wrong_shape_{"with another shape"}, wrong_type_{"with a type other than U8"};
};

}  // namespace

void place_experts(WeightIndex& index, const DecoderShape& shape) { Placer(index, shape).place(expert_places(shape)); }

}  // namespace llmtrain
