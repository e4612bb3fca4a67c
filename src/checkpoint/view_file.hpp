#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"

namespace llmtrain {

/// Writes `folder`/view.h5: /master/<tensor>, /m/<tensor> and /v/<tensor> show each whole tensor under its Hugging Face
/// name, as virtual datasets over /units/<kind>/<unit>, which are virtual datasets over the shards. It is for users
/// (h5py, h5dump); a resume never reads it. Tensors have the orientation of training; the attribute `transposed` is 1
/// if Hugging Face stores [columns, rows], which no virtual dataset can show. Any thread can call it.
void write_view(const std::string& folder, const Schema& schema, int64_t step,
                const std::vector<CheckpointShard>& shards);

}  // namespace llmtrain
