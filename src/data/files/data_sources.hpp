#pragma once
// The files that data.train and data.validation name, and the weights of the sources they are.

#include <string>
#include <vector>

#include "data/data_config.hpp"
#include "data/files/text_source.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// An entry of data.train without and with a weight: "web.h5", "web.h5:0.7". The last colon with a number behind it is
/// always that of a weight, so a file whose own name ends in one needs a weight of its own: "odd:1:0.5".
struct WeightedPattern {
  std::string pattern;
  double weight = 0;  ///< 0: none is given
};
/// UserError(deck) for a weight that is not positive.
WeightedPattern split_weight(const std::string& entry);

/// Training data in sources: one per entry where entries have weights, else one of all files.
struct InputSets {
  std::vector<std::vector<InputFile>> sources;
  std::vector<double> weights;  ///< of each source
  std::vector<InputFile> validation;

  /// All files, training data first.
  std::vector<InputFile> all() const;
  std::vector<InputFile*> pointers();
};

/// Whether this is the example corpus, which stands alone. UserError(deck) for another built-in name or beside others.
bool names_built_in(const std::vector<std::string>& patterns);
/// The entries as patterns and weights: all have one, or none has.
std::vector<WeightedPattern> split_weights(const std::vector<std::string>& entries);
/// What the deck names. The example corpus is written into `folder`.
InputSets find_input_sets(const DataConfig& config, const std::string& folder);
/// Rank 0 has looked, all others are told: folders of a network may look different elsewhere. Collective.
void share_input_sets(InputSets& sets, Communicator& communicator);
/// UserError(deck) where kinds cannot go together.
void check_kinds(const InputSets& sets);

}  // namespace llmtrain
