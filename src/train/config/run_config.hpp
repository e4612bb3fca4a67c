#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [run]
struct RunConfig {
  enum class Task : uint8_t { pretrain, evaluate, tokenizer };

  std::string name;  ///< of the run directory; the deck's file name without .ini when not given
  Task task = Task::pretrain;
  std::string output = "runs";
  int64_t seed = 42;
  bool overwrite = false;
  int64_t max_steps = 0;  ///< 0: given by epochs
  double epochs = 0;      ///< 0: given by max_steps
  static constexpr int64_t limit_of_job = -1;
  int64_t time_limit = limit_of_job;  ///< seconds; limit_of_job: what Slurm grants; 0: none

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, std::string_view deck_name);
};

template <>
inline constexpr auto enum_names<RunConfig::Task> = name_list("pretrain", "evaluate", "tokenizer");

}  // namespace llmtrain
