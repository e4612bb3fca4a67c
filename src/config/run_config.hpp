#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/deck/task.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;
struct TaskData;

/// [run]
struct RunConfig {
  enum class Finetuning : uint8_t { full, lora, freeze };

  std::string name;  ///< name of the run directory; default: the deck's file name without .ini
  Task task = Task::pretrain;
  Finetuning finetuning = Finetuning::full;
  std::string output = "runs";
  int64_t seed = 42;
  bool overwrite = false;
  int64_t max_steps = 0;  ///< 0: epochs sets the length
  double epochs = 0;      ///< 0: max_steps sets the length
  static constexpr int64_t limit_of_job = -1;
  int64_t time_limit = limit_of_job;  ///< seconds; limit_of_job: Slurm's limit; 0: none

  /// Path of the run directory.
  std::string directory() const { return output + "/" + name; }

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, std::string_view deck_name, const TaskData& needs);
};

template <>
inline constexpr auto enum_names<RunConfig::Finetuning> = name_list("full", "lora", "freeze");

}  // namespace llmtrain
