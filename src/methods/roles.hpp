#pragma once
// Models of a job that trains, as the deck describes them.

#include <cstdint>
#include <string>

#include "methods/method.hpp"

namespace llmtrain {

/// Embedding rows in the softmax. A published model has no padding rows, whatever its tokenizer.
int64_t softmax_rows(const ModelConfig& model, const Dataset& data);
/// Shape of the model that is trained, with its adapters or frozen layers. `tokens`: of its softmax.
DecoderShape trained_shape(const Config& config, const ModelConfig& model, int64_t tokens);
/// The place of a rank that shares no memory, among those that have its blocks of split matrices.
RankPosition rank_position(const Communicator& job, const ParallelConfig& parallel);
/// Options of the store of a frozen model on a rank. `experts`: of a layer; 0: it has none.
ParamStoreOptions store_options(const Config& config, const RankPosition& position, int64_t experts);
/// The same for the model that is trained, but for its reduction groups.
ParamStoreOptions trained_store_options(const Config& config, const RankPosition& position);
/// A model that is not trained, from a folder.
RoleSpec frozen_role(Role role, const RoleRequest& request, DecoderShape shape, const std::string& folder);
/// True if the policy without its adapters is the reference: nothing else of it is trained.
bool is_own_reference(const Config& config);
/// The reference, as it begins. `follows`: it later moves towards the policy.
RoleSpec reference_role(const RoleRequest& request, bool follows);
/// The teacher of distill.teacher.
RoleSpec teacher_role(const RoleRequest& request);
/// The model of the first step, which is scored before training.
RoleSpec starting_role(const RoleRequest& request);

}  // namespace llmtrain
