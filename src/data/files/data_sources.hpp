#pragma once
// Files of data.train and data.validation, and the weights of their sources.

#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/files/token_file.hpp"
#include "data/sample_rules.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// An entry of data.train without or with a weight: "web.h5", "web.h5:0.7". The last colon before a number always
/// starts a weight, so a file whose name ends in one needs an explicit weight: "odd:1:0.5".
struct WeightedPattern {
  std::string pattern;
  double weight = 0;  ///< 0: not given
};
/// Throws UserError(deck) for a weight that is not positive.
WeightedPattern split_weight(const std::string& entry);

/// Training data in sources: one per entry if entries have weights, otherwise one with all files.
struct InputSets {
  std::vector<std::vector<InputFile>> sources;
  std::vector<double> weights;  ///< per source
  std::vector<InputFile> validation;

  /// Returns all files, training data first.
  std::vector<InputFile> all() const;
  std::vector<InputFile*> pointers();
};

/// Returns true for the example corpus, which cannot be combined. Throws UserError(deck) for another built-in name or a
/// combination.
bool names_built_in(const std::vector<std::string>& patterns);
/// Splits the entries into patterns and weights: all have a weight, or none has.
std::vector<WeightedPattern> split_weights(const std::vector<std::string>& entries);
/// Finds the files of the deck. The example corpus is written into `folder`.
InputSets find_input_sets(const SampleRules& config, const std::string& folder);
/// Rank 0 looks and broadcasts the result, since network folders can look different elsewhere. Collective.
void share_input_sets(InputSets& sets, Communicator& communicator);
/// Throws UserError if the kinds cannot be combined (deck), or if the task does not take them (bad_content).
void check_kinds(const InputSets& sets, DataUse use);
/// Throws UserError(deck) for files that are not texts if some texts are to be cut for fill-in-the-middle.
void check_infilling(const InputSets& sets, double rate);
/// Throws UserError(bad_content) for a token file that the task does not take.
void check_use(const TokenFileInfo& info, DataUse use);
/// Throws UserError(bad_content) for a file that cannot have the column of difficulties that its format names.
void check_difficulties(const InputFile& file);
/// The same for a token file, whose column is that of its values.
void check_difficulties(const InputFile& file, const TokenFileInfo& info);

}  // namespace llmtrain
