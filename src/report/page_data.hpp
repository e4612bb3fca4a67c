#pragma once
// Data of a page's charts, as JSON that its script reads.

#include <string>
#include <vector>

#include "report/charts/chart_plan.hpp"

namespace llmtrain {

/// {"runs": [{"name", "time": [steps, seconds], "marks": [{"kind", "step", "text"}], "curves": {metric: [steps,
/// values]}}], "charts": [{"title", "unit", "logarithmic", "lines": [[run, metric, label]]}]}
std::string page_data(const std::vector<RunReader>& runs, const std::vector<Chart>& charts);

}  // namespace llmtrain
