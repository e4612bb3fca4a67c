#include "kernels/host/product/tile_store.hpp"

namespace llmtrain::host {

void store_tile_avx512(const FinishedTile& tile) { TileStore<Float16>::run(tile); }

}  // namespace llmtrain::host
