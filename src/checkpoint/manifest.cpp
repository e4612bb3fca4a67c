#include "checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "core/error.hpp"
#include "core/files/folder_handle.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view before_hash = R"({"hash":")";
constexpr std::string_view after_hash = R"(","manifest":)";
constexpr std::string_view ending = "}\n";
constexpr int64_t max_shards = 1'000'000;
constexpr int64_t max_steps = int64_t{1} << 53;

Json file_to_json(const CheckpointFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"hash", hex(file.hash)}};
}

Json schema_to_json(const Schema& schema, std::string_view part) {
  Json list = Json::array();
  if (part == "units") {
    for (const UnitSchema& unit : schema.units) {
      list.push_back({{"name", unit.name}, {"elements", unit.elements}});
      if (!unit.segment_ends.empty()) list.back()["segment_ends"] = unit.segment_ends;
      if (unit.tensor_block >= 0) list.back()["tensor_block"] = unit.tensor_block;
      if (unit.expert_block >= 0) list.back()["expert_block"] = unit.expert_block;
    }
    return list;
  }
  for (const TensorSchema& tensor : schema.tensors) {
    Json shape = Json::array({tensor.rows});
    if (tensor.columns > 0) shape.push_back(tensor.columns);
    list.push_back({{"name", tensor.name},
                    {"shape", shape},
                    {"unit", tensor.unit},
                    {"offset", tensor.offset},
                    {"transposed", tensor.transposed}});
    if (!tensor.per_chunk.empty()) list.back()["per_chunk"] = tensor.per_chunk;
    if (const auto& b = tensor.block) list.back()["block"] = {b->first_row, b->first_column, b->rows, b->columns};
  }
  return list;
}

Json states_to_json(const StatePlanes& states) {
  Json list = Json::array();
  for (const StatePlane& plane : states) {
    list.push_back({{"name", plane.name}, {"dtype", name_of(plane.dtype)}, {"per_chunk", plane.per_chunk}});
  }
  return list;
}

Json run_to_json(const RunState& run) {
  Json values = Json::object(), counters = Json::object();
  for (const auto& [name, value] : run.values) values[name] = fmt::format("{:a}", value);  // exact
  for (const auto& [name, count] : run.counters) counters[name] = count;
  Json skipped = Json::array();
  for (const auto& [first, last] : run.skipped) skipped.push_back({first, last});
  Json json{{"counters", counters}, {"values", values}, {"parameters", run.parameters}, {"skipped", skipped}};
  if (!run.attention.empty()) json["attention"] = run.attention;
  if (!run.products.empty()) json["products"] = run.products;
  for (const NamedContent& c : run.contents) {
    Json entry{{"key", c.key}, {"path", c.path}, {"hash", c.hash}};
    if (!c.role.empty()) entry["role"] = c.role;
    json["contents"].push_back(std::move(entry));
  }
  return json;
}

CheckpointFile file_from(const JsonNode& field) {
  CheckpointFile file{field.at("name").text(), field.at("bytes").count(), digest_from(field.at("hash"))};
  // "FILE" or "FOLDER/FILE"
  const std::string_view name = file.name;
  const size_t slash = name.find('/');
  if (slash != std::string_view::npos) check_file_name(name.substr(0, slash), "manifest");
  check_file_name(slash == std::string_view::npos ? name : name.substr(slash + 1), "manifest");
  if (file.bytes == 0) field.refuse("a file of a checkpoint must not be empty");
  return file;
}

StatePlanes states_from(const JsonNode& list) {
  constexpr std::array types{DType::f32, DType::bf16, DType::f16, DType::u8};
  StatePlanes states;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonNode plane = list.at(i);
    plane.check_keys({"name", "dtype", "per_chunk"});
    const std::string name = plane.at("dtype").text();
    const auto* type = std::ranges::find_if(types, [&](DType t) { return name_of(t) == name; });
    if (type == types.end()) plane.at("dtype").refuse_value("the type of a state");
    states.push_back({plane.at("name").text(), *type, plane.at("per_chunk").count()});
  }
  return states;
}

TensorBlock block_from(const JsonNode& list) {
  if (list.size() != 4) list.refuse("row, column, rows and columns are expected");
  return {list.at(size_t{0}).count(), list.at(1).count(), list.at(2).count(), list.at(3).count()};
}

Schema schema_from(const JsonNode& json, const std::string& source) {
  const JsonNode units = json.at("units").array(), tensors = json.at("tensors").array();
  Schema schema;
  if (json.has("tensor_parallel")) schema.tensor_blocks = json.at("tensor_parallel").at("blocks").count(max_shards);
  if (json.has("expert_parallel")) schema.expert_blocks = json.at("expert_parallel").at("blocks").count(max_shards);
  if (json.has("states")) schema.states = states_from(json.at("states").array());
  for (size_t i = 0; i < units.size(); ++i) {
    const JsonNode unit = units.at(i);
    unit.check_keys({"name", "elements"}, {"segment_ends", "tensor_block", "expert_block"});
    schema.units.push_back({unit.at("name").text(), unit.at("elements").count()});
    if (unit.has("tensor_block")) schema.units.back().tensor_block = unit.at("tensor_block").count(max_shards);
    if (unit.has("expert_block")) schema.units.back().expert_block = unit.at("expert_block").count(max_shards);
    if (!unit.has("segment_ends")) continue;
    const JsonNode ends = unit.at("segment_ends").array();
    if (ends.size() < 2) ends.refuse("a list of segments is expected");
    for (size_t e = 0; e < ends.size(); ++e) schema.units.back().segment_ends.push_back(ends.at(e).count());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const JsonNode tensor = tensors.at(i);
    tensor.check_keys({"name", "shape", "unit", "offset", "transposed"}, {"per_chunk", "block"});
    const JsonNode shape = tensor.at("shape").array();
    if (shape.size() < 1 || shape.size() > 2) shape.refuse("one or two dimensions are expected");
    schema.tensors.push_back({tensor.at("name").text(), tensor.at("unit").count(), tensor.at("offset").count(),
                              shape.at(size_t{0}).count(), shape.size() == 2 ? shape.at(1).count() : 0,
                              tensor.at("transposed").boolean()});
    if (shape.size() == 2 && schema.tensors.back().columns == 0) shape.refuse("a dimension is 0");
    const size_t planes = tensor.has("per_chunk") ? tensor.at("per_chunk").array().size() : 0;
    for (size_t p = 0; p < planes; ++p) {
      schema.tensors.back().per_chunk.push_back(tensor.at("per_chunk").at(p).count());
    }
    if (tensor.has("block")) schema.tensors.back().block = block_from(tensor.at("block").array());
  }
  check_schema(schema, source);
  return schema;
}

double value_from(const JsonNode& field) {
  const std::string& text = field.text();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) field.refuse("a C hexadecimal float is expected");
  return value;
}

RunState run_from(const JsonNode& field) {
  RunState run;
  field.check_keys({"counters", "values", "parameters", "skipped"}, {"attention", "products", "contents"});
  for (const auto& [name, library] : {std::pair("attention", &run.attention), {"products", &run.products}}) {
    if (!field.has(name)) continue;
    *library = field.at(name).text();
    if (library->empty()) field.at(name).refuse("a library is expected");
  }
  if (field.has("contents")) {
    const JsonNode contents = field.at("contents").array();
    if (contents.size() == 0) contents.refuse("a list of files is expected");
    for (size_t i = 0; i < contents.size(); ++i) {
      const JsonNode entry = contents.at(i);
      entry.check_keys({"key", "path", "hash"}, {"role"});
      run.contents.push_back(
          {entry.at("key").text(), entry.at("path").text(), entry.at("hash").text(), entry.text_or("role", "")});
    }
  }
  field.at("counters").each_member([&](const std::string& name, const JsonNode& f) { run.counters[name] = f.count(); });
  field.at("values").each_member([&](const std::string& name, const JsonNode& f) { run.values[name] = value_from(f); });
  run.parameters = field.at("parameters").text();
  const JsonNode skipped = field.at("skipped").array();
  for (size_t i = 0; i < skipped.size(); ++i) {
    if (skipped.at(i).array().size() != 2) skipped.at(i).refuse("a pair of steps is expected");
    const int64_t first = skipped.at(i).at(size_t{0}).count(max_steps), last = skipped.at(i).at(1).count(max_steps);
    if (last <= first || (i > 0 && first < run.skipped.back().second))
      skipped.at(i).refuse("not a range after the others");
    run.skipped.emplace_back(first, last);
  }
  return run;
}

/// Name of a file of the state that is not in a folder of its own, as in older checkpoints of many files.
std::string flat_name(int64_t file, int64_t files) { return fmt::format("shard-{:05}-of-{:05}.h5", file, files); }

/// Numbers files in the order of their first shards; a file must be the same wherever it is named.
void check_shard_files(const JsonNode& field, const std::vector<CheckpointShard>& shards) {
  const int64_t files = count_files(shards);
  std::map<std::string, CheckpointFile> seen;
  for (size_t i = 0; i < shards.size(); ++i) {
    const CheckpointFile& file = shards[i].file;
    const auto number = static_cast<int64_t>(seen.size());
    const auto [found, is_new] = seen.emplace(file.name, file);
    const bool named = file.name == shard_name(number, files) || file.name == flat_name(number, files);
    if (is_new && !named) field.at(i).refuse("not the name of this shard's file");
    if (found->second != file) field.at(i).refuse("size and hash differ from the same file above");
  }
}

void read_files(const JsonNode& shards, const JsonNode& files, Manifest& manifest) {
  const auto count = static_cast<int64_t>(shards.size());
  if (count < 1 || count > max_shards) shards.refuse("the number of shards is impossible");
  for (size_t i = 0; i < shards.size(); ++i) {
    shards.at(i).check_keys({"name", "bytes", "hash", "index_offset", "index_bytes"});
    const CheckpointFile file = file_from(shards.at(i));
    const int64_t offset = shards.at(i).at("index_offset").count(file.bytes);
    manifest.shards.push_back({file, offset, shards.at(i).at("index_bytes").count(file.bytes - offset)});
  }
  check_shard_files(shards, manifest.shards);
  std::set<std::string> names{manifest_name};
  for (size_t i = 0; i < files.size(); ++i) {
    files.at(i).check_keys({"name", "bytes", "hash"});
    manifest.files.push_back(file_from(files.at(i)));
    const std::string& name = manifest.files.back().name;
    const bool plain = name.find('/') == std::string::npos && !name.starts_with(shard_prefix);
    if (!plain || !names.insert(name).second) files.at(i).refuse("not a valid name of a file");
  }
}

/// The ranks that share `blocks` of matrices or experts, which divide the blocks and `shards` shards.
int64_t ranks_from(const JsonNode& field, int64_t blocks, int64_t shards) {
  field.check_keys({"ranks", "blocks"});
  const int64_t ranks = field.at("ranks").count(max_shards);
  const bool divide = ranks > 0 && shards % ranks == 0 && blocks % ranks == 0;
  if (blocks < 2 || !divide) field.refuse("the ranks do not divide the shards and the blocks");
  return ranks;
}

/// Text that the hash covers.
std::string_view hashed_text(std::string_view text, const std::string& source) {
  const size_t begin = before_hash.size() + 32 + after_hash.size();
  const bool framed = text.size() > begin + ending.size() && text.starts_with(before_hash) &&
                      text.substr(before_hash.size() + 32).starts_with(after_hash) && text.ends_with(ending);
  if (!framed) throw UserError(ExitCode::bad_content, source + ": not a complete manifest of a checkpoint");
  const std::string_view body = text.substr(begin, text.size() - begin - ending.size());
  const std::string expected(text.substr(before_hash.size(), 32));
  const std::string actual = hex(digest_of(body.data(), body.size()));
  if (expected != actual) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: its hash is {} instead of {}", source, actual, printable(expected)));
  }
  return body;
}

}  // namespace

Digest digest_from(const JsonNode& node) {
  const auto digest = parse_digest(node.text());
  if (!digest) node.refuse_value("a hash of 32 hexadecimal digits");
  return *digest;
}

std::vector<CheckpointFile> Manifest::all_files() const {
  std::vector<CheckpointFile> all;
  std::set<std::string_view> seen;
  for (const CheckpointShard& shard : shards) {
    if (seen.insert(shard.file.name).second) all.push_back(shard.file);
  }
  all.insert(all.end(), files.begin(), files.end());
  return all;
}

std::string shard_name(int64_t file, int64_t files) {
  const std::string name = flat_name(file, files);
  return files > files_of_folder ? fmt::format("shards-{:05}/{}", file / files_of_folder, name) : name;
}

std::string group_of_shard(int64_t shard, int64_t shards, int64_t files) {
  return files == shards ? std::string() : fmt::format("/rank-{:05}", shard);
}

int64_t count_files(const std::vector<CheckpointShard>& shards) {
  std::set<std::string_view> names;
  for (const CheckpointShard& shard : shards) names.insert(shard.file.name);
  return static_cast<int64_t>(names.size());
}

std::string to_text(const Manifest& manifest) {
  Json shards = Json::array(), files = Json::array();
  for (const CheckpointShard& shard : manifest.shards) {
    Json entry = file_to_json(shard.file);
    entry["index_offset"] = shard.index_offset;
    entry["index_bytes"] = shard.index_bytes;
    shards.push_back(std::move(entry));
  }
  for (const CheckpointFile& file : manifest.files) files.push_back(file_to_json(file));
  Json json{{"format", "llmtrain checkpoint"},
            {"version", checkpoint_version},
            {"program", manifest.program},
            {"step", manifest.step},
            {"run", run_to_json(manifest.run)},
            {"ledger", {{"bytes", manifest.ledger_bytes}, {"hash", hex(manifest.ledger_hash)}}},
            {"deck", manifest.deck},
            {"shards", std::move(shards)},
            {"files", std::move(files)},
            {"units", schema_to_json(manifest.schema, "units")},
            {"tensors", schema_to_json(manifest.schema, "tensors")}};
  if (manifest.schema.states != master_and_moments()) json["states"] = states_to_json(manifest.schema.states);
  const auto put_blocks = [&](const char* name, int64_t ranks, int64_t blocks) {
    if (blocks > 1) json[name] = {{"ranks", ranks}, {"blocks", blocks}};
  };
  put_blocks("tensor_parallel", manifest.tensor_ranks, manifest.schema.tensor_blocks);
  put_blocks("expert_parallel", manifest.expert_ranks, manifest.schema.expert_blocks);
  if (const auto& frozen = manifest.frozen) {
    json["frozen"] = {{"path", frozen->path}, {"bytes", frozen->bytes}, {"hash", frozen->hash}, {"seed", frozen->seed}};
    if (frozen->rows > 0) json["frozen"]["rows"] = frozen->rows;
  }
  const std::string body = json.dump(1, ' ', false, Json::error_handler_t::replace);
  const std::string hash = hex(digest_of(body.data(), body.size()));
  return fmt::format("{}{}{}{}{}", before_hash, hash, after_hash, body, ending);
}

/// Earlier manifests name the blocks of experts as those of matrices, of which a model with experts then had none.
static void rename_blocks_of_experts(nlohmann::json& json) {
  const auto units = json.is_object() ? json.find("units") : json.end();
  if (!json.is_object() || units == json.end() || json.contains("expert_parallel") ||
      !json.contains("tensor_parallel")) {
    return;
  }
  const auto is_of_experts = [](const nlohmann::json& unit) {
    return unit.is_object() && unit.contains("name") && unit["name"].is_string() &&
           unit["name"].get_ref<const std::string&>().find(".experts.") != std::string::npos;
  };
  if (std::none_of(units->begin(), units->end(), is_of_experts)) return;
  for (nlohmann::json& unit : *units) {
    if (!is_of_experts(unit) || !unit.contains("tensor_block")) continue;
    unit["expert_block"] = unit["tensor_block"];
    unit.erase("tensor_block");
  }
  json["expert_parallel"] = json["tensor_parallel"];
  json.erase("tensor_parallel");
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  nlohmann::json json =
      parse_json(hashed_text(text, source), source, {.bytes = max_manifest_bytes, .values = int64_t{1} << 22});
  rename_blocks_of_experts(json);
  const JsonNode field(json, source);
  if (!json.is_object() || !json.contains("format") || json["format"] != "llmtrain checkpoint" ||
      !json.contains("version")) {
    field.refuse("not the manifest of a checkpoint");
  }
  if (const int64_t version = field.at("version").count(); version != checkpoint_version) {
    field.refuse(fmt::format("its format has version {}; this program reads version {}", version, checkpoint_version));
  }
  field.check_keys(
      {"format", "version", "program", "step", "run", "ledger", "deck", "shards", "files", "units", "tensors"},
      {"frozen", "states", "tensor_parallel", "expert_parallel"});
  Manifest manifest;
  manifest.step = field.at("step").count(max_steps);
  manifest.program = field.at("program").text();
  manifest.deck = field.at("deck").text();
  field.at("ledger").check_keys({"bytes", "hash"});
  manifest.ledger_bytes = field.at("ledger").at("bytes").count();
  manifest.ledger_hash = digest_from(field.at("ledger").at("hash"));
  manifest.run = run_from(field.at("run"));
  manifest.schema = schema_from(field, source);
  read_files(field.at("shards").array(), field.at("files").array(), manifest);
  const int64_t shards = std::ssize(manifest.shards);
  if (field.has("tensor_parallel")) {
    manifest.tensor_ranks = ranks_from(field.at("tensor_parallel"), manifest.schema.tensor_blocks, shards);
  }
  if (field.has("expert_parallel")) {
    const int64_t with_same_matrices = shards / manifest.tensor_ranks;
    manifest.expert_ranks = ranks_from(field.at("expert_parallel"), manifest.schema.expert_blocks, with_same_matrices);
  }
  if (!field.has("frozen")) return manifest;
  const JsonNode frozen = field.at("frozen");
  frozen.check_keys({"path", "bytes", "hash", "seed"}, {"rows"});
  manifest.frozen = {frozen.at("path").text(), frozen.at("bytes").count(), frozen.at("hash").text(),
                     frozen.at("seed").count(), frozen.has("rows") ? frozen.at("rows").count() : 0};
  return manifest;
}

void require_same(const FrozenWeights& saved, const FrozenWeights& now, const std::string& checkpoint) {
  if (saved.hash == now.hash && (!saved.path.empty() || saved.seed == now.seed)) return;
  const auto text = [](const FrozenWeights& f) {
    return f.path.empty() ? fmt::format("random numbers of seed {}", f.seed)
                          : fmt::format("{} ({} bytes, hash {})", printable(f.path), f.bytes, printable(f.hash));
  };
  throw UserError(
      ExitCode::bad_content,
      fmt::format("{}: its frozen weights, which it does not contain, were those of {}, but now they are {}. "
                  "Restore the model that the run started from",
                  checkpoint, text(saved), text(now)));
}

}  // namespace llmtrain
