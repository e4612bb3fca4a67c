#pragma once
// Log-probabilities of all documents of a step before its passes, for objectives with statistics over the whole step.

#include "data/stream/data_stream.hpp"
#include "evaluation/evaluation_buffers.hpp"
#include "models/model.hpp"
#include "objectives/objective.hpp"
#include "parallel/mesh.hpp"
#include "roles/reference.hpp"

namespace llmtrain {

/// The models of a job and memory for their passes.
struct ScoringPasses {
  Model& model;
  Context& ctx;  ///< role and training are set for the passes, and restored
  const EvaluationBuffers& buffers;
  DataPart part;
  const Mesh& mesh;
};

/// Scores the documents of a step, micro-batches assigned to the data ranks round robin, and shows all of them to the
/// objective. What it sees does not depend on the number of ranks. Collective.
void score_step(const ScoringPasses& passes, const DataStream& data, const StepPlan& step, Objective& objective);

}  // namespace llmtrain
