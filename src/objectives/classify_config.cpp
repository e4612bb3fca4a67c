#include "objectives/classify_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck.hpp"

namespace llmtrain {

void ClassifyConfig::visit(DeckKeys& keys) {
  keys.section("classify", "Learn labels of texts, or of their words (run.task = classify).", Change::breaks,
               label_tasks);
  keys.key(
      "kind", kind,
      {.doc = "sequence: a label of a text, read at its last token; token: a label of each word, read at its first "
              "token."});
  keys.key("labels", labels,
           {.doc = "Names of the labels, in the order of the head's outputs; rows name a label, or, if no name is a "
                   "number, give its number in this order, from 0.",
            .automatic = "the labels of the model's folder, or of the rows, in alphabetical order"});
  keys.key("problem", problem,
           {.doc = "single: one label, by cross-entropy; multi: any number of labels, by the binary cross-entropy of "
                   "each; regression: a number, by its squared error."});
}

void ClassifyConfig::resolve(DeckLoader& deck) {
  if (labels == std::vector<std::string>{"auto"}) labels.clear();
  deck.check(kind == Kind::sequence || problem == LabelProblem::single, {"classify.problem", "classify.kind"},
             fmt::format("{} is a problem of texts: a word has a single label (kind = token)", name_of(problem)));
  deck.check(problem != LabelProblem::regression || labels.empty(), {"classify.labels", "classify.problem"},
             "regression has no labels, but numbers: remove the key");
  deck.check(labels.size() != 1 && labels.size() <= max_labels, {"classify.labels"},
             fmt::format("{} labels: there must be 2 to {}", labels.size(), max_labels));
  for (auto label = labels.begin(); label != labels.end(); ++label) {
    deck.check(!label->empty() && std::find(labels.begin(), label, *label) == label, {"classify.labels"},
               label->empty() ? "a name is empty" : *label + " is repeated");
  }
}

}  // namespace llmtrain
