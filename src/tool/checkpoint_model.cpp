#include "tool/checkpoint_model.hpp"

#include <algorithm>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/folder_handle.hpp"
#include "train/config.hpp"

namespace llmtrain {

bool CheckpointModel::is_checkpoint(const std::string& folder) { return FolderHandle::open(folder).has(manifest_name); }

CheckpointModel::CheckpointModel(const std::string& folder, Communicator& communicator,
                                 std::unique_ptr<Tokenizer>& tokenizer)
    : folder_(folder), manifest_(verify_checkpoint(folder, communicator)) {
  config_.model = load_config(manifest_.deck, folder + "/manifest.json: deck").model;
  const auto& files = manifest_.files;
  const auto is_tokenizer = [](const CheckpointFile& file) { return file.name == tokenizer_name; };
  if (std::none_of(files.begin(), files.end(), is_tokenizer)) return;
  tokenizer =
      make_tokenizer_from(FolderHandle::open(folder).open_to_read(tokenizer_name).read_text(most_tokenizer_bytes));
  if (tokenizer->bos_id() >= 0) config_.ids.bos = tokenizer->bos_id();
  if (tokenizer->eos_id() >= 0) config_.ids.eos = {tokenizer->eos_id()};
}

void CheckpointModel::load(ParamStore& params, Communicator& communicator, Stream& stream) const {
  std::vector<float> buffer(size_t{1} << 18);
  StoreParameters target(params, stream);
  load_checkpoint(folder_, manifest_, target, buffer, communicator);
}

}  // namespace llmtrain
