#pragma once
#include <string>
#include <vector>

namespace llmtrain {

class DeckKeys;

/// [wandb]; for the sink of that name.
struct WandbConfig {
  std::string project = "llmtrain";
  std::string name;    ///< empty: run.name
  std::string entity;  ///< empty: that of the account that syncs
  std::vector<std::string> tags;
  std::string group;

  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
