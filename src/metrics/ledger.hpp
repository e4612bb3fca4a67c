#pragma once
// Lines of ledger.jsonl, and console messages on divergence.

#include <string>

#include "metrics/records.hpp"

namespace llmtrain {

/// Reuses the memory of another step's line.
void ledger_line(const StepRecord& record, std::string& line);
std::string ledger_line(const EvaluationRecord& record);
std::string ledger_line(const RollbackRecord& record);

std::string problem_text(const StepRecord& record);
std::string problem_text(const RollbackRecord& record);
/// Line of a step that the loss scale skipped.
std::string skip_text(const StepRecord& record);
/// "HOST is slow: ..." or "HOST has recovered: ..." for the console.
std::string notice_text(const NodeNotice& notice);

}  // namespace llmtrain
