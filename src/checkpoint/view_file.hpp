#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"

namespace llmtrain {

/// Group of the datasets of whole units.
inline constexpr const char* unit_views = "/units";

/// Writes `folder`/view.h5 for shards of this numbering: /master/<tensor>, /m/<tensor> and /v/<tensor> show
/// each whole tensor under its Hugging Face name, as virtual datasets over /units/<kind>/<unit>, which are virtual
/// datasets over the shards, or over those of files that shards share; a tensor of several blocks is one over those of
/// their units. It is for users (h5py, h5dump); a resume never reads it. Tensors have the orientation of training; the
/// attribute `transposed` is 1 if Hugging Face stores [columns, rows], which no virtual dataset can show. Any thread
/// can call it.
void write_view(const std::string& folder, const Schema& schema, int64_t step,
                const std::vector<CheckpointShard>& shards, const Sharding& sharding);

/// Adds to a file of several shards, which HDF5 has open, /units/<kind>/<unit>: all that they have of a unit, in its
/// order. So the view of a checkpoint grows with the files instead of the shards.
void add_unit_views(int64_t file, const std::string& path, const Schema& schema, const SharedFile& shared,
                    const Sharding& shards);

}  // namespace llmtrain
