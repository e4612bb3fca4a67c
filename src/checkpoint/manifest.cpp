#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "checkpoint/json_fields.hpp"
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
    for (const UnitSchema& unit : schema.units) list.push_back({{"name", unit.name}, {"elements", unit.elements}});
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
  for (const NamedContent& c : run.contents) {
    Json entry{{"key", c.key}, {"path", c.path}, {"hash", c.hash}};
    if (!c.role.empty()) entry["role"] = c.role;
    json["contents"].push_back(std::move(entry));
  }
  return json;
}

CheckpointFile file_from(const JsonField& field) {
  CheckpointFile file{field["name"].text(), field["bytes"].count(), field["hash"].digest()};
  check_file_name(file.name, "manifest");
  if (file.bytes == 0) field.refuse("a file of a checkpoint must not be empty");
  return file;
}

Schema schema_from(const JsonField& units, const JsonField& tensors, const std::string& source) {
  Schema schema;
  for (size_t i = 0; i < units.size(); ++i) {
    const JsonField unit = units[i];
    unit.check_keys({"name", "elements"});
    schema.units.push_back({unit["name"].text(), unit["elements"].count()});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const JsonField tensor = tensors[i];
    tensor.check_keys({"name", "shape", "unit", "offset", "transposed"});
    const JsonField shape = tensor["shape"];
    if (shape.size() < 1 || shape.size() > 2) shape.refuse("one or two dimensions are expected");
    schema.tensors.push_back({tensor["name"].text(), tensor["unit"].count(), tensor["offset"].count(),
                              shape[size_t{0}].count(), shape.size() == 2 ? shape[1].count() : 0,
                              tensor["transposed"].boolean()});
    if (shape.size() == 2 && schema.tensors.back().columns == 0) shape.refuse("a dimension is 0");
  }
  check_schema(schema, source);
  return schema;
}

double value_from(const JsonField& field) {
  const std::string& text = field.text();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) field.refuse("a C hexadecimal float is expected");
  return value;
}

RunState run_from(const JsonField& field) {
  RunState run;
  field.check_keys({"counters", "values", "parameters", "skipped"}, {"attention", "contents"});
  if (field.has("attention")) {
    run.attention = field["attention"].text();
    if (run.attention.empty()) field["attention"].refuse("a library is expected");
  }
  if (field.has("contents")) {
    const JsonField contents = field["contents"];
    if (contents.size() == 0) contents.refuse("a list of files is expected");
    for (size_t i = 0; i < contents.size(); ++i) {
      const JsonField entry = contents[i];
      entry.check_keys({"key", "path", "hash"}, {"role"});
      run.contents.push_back({entry["key"].text(), entry["path"].text(), entry["hash"].text(),
                              entry.has("role") ? entry["role"].text() : std::string()});
    }
  }
  field["counters"].each_member([&](const std::string& name, const JsonField& f) { run.counters[name] = f.count(); });
  field["values"].each_member([&](const std::string& name, const JsonField& f) { run.values[name] = value_from(f); });
  run.parameters = field["parameters"].text();
  const JsonField skipped = field["skipped"];
  for (size_t i = 0; i < skipped.size(); ++i) {
    if (skipped[i].size() != 2) skipped[i].refuse("a pair of steps is expected");
    const int64_t first = skipped[i][size_t{0}].count(max_steps), last = skipped[i][1].count(max_steps);
    if (last <= first || (i > 0 && first < run.skipped.back().second))
      skipped[i].refuse("not a range after the others");
    run.skipped.emplace_back(first, last);
  }
  return run;
}

/// Numbers files in the order of their first shards; a file must be the same wherever it is named.
void check_shard_files(const JsonField& field, const std::vector<CheckpointShard>& shards) {
  const int64_t files = count_files(shards);
  std::map<std::string, CheckpointFile> seen;
  for (size_t i = 0; i < shards.size(); ++i) {
    const CheckpointFile& file = shards[i].file;
    const auto number = static_cast<int64_t>(seen.size());
    const auto [found, is_new] = seen.emplace(file.name, file);
    if (is_new && file.name != shard_name(number, files)) field[i].refuse("not the name of this shard's file");
    if (found->second != file) field[i].refuse("size and hash differ from the same file above");
  }
}

void read_files(const JsonField& shards, const JsonField& files, Manifest& manifest) {
  const auto count = static_cast<int64_t>(shards.size());
  if (count < 1 || count > max_shards) shards.refuse("the number of shards is impossible");
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].check_keys({"name", "bytes", "hash", "index_offset", "index_bytes"});
    const CheckpointFile file = file_from(shards[i]);
    const int64_t offset = shards[i]["index_offset"].count(file.bytes);
    manifest.shards.push_back({file, offset, shards[i]["index_bytes"].count(file.bytes - offset)});
  }
  check_shard_files(shards, manifest.shards);
  std::set<std::string> names{manifest_name};
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].check_keys({"name", "bytes", "hash"});
    manifest.files.push_back(file_from(files[i]));
    const std::string& name = manifest.files.back().name;
    if (name.starts_with("shard-") || !names.insert(name).second) files[i].refuse("not a valid name of a file");
  }
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

std::vector<CheckpointFile> Manifest::all_files() const {
  std::vector<CheckpointFile> all;
  std::set<std::string_view> seen;
  for (const CheckpointShard& shard : shards) {
    if (seen.insert(shard.file.name).second) all.push_back(shard.file);
  }
  all.insert(all.end(), files.begin(), files.end());
  return all;
}

std::string shard_name(int64_t file, int64_t files) { return fmt::format("shard-{:05}-of-{:05}.h5", file, files); }

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
  const Json json{{"format", "llmtrain checkpoint"},
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
  const std::string body = json.dump(1, ' ', false, Json::error_handler_t::replace);
  const std::string hash = hex(digest_of(body.data(), body.size()));
  return fmt::format("{}{}{}{}{}", before_hash, hash, after_hash, body, ending);
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  const nlohmann::json json =
      parse_json(hashed_text(text, source), source, {.bytes = max_manifest_bytes, .values = int64_t{1} << 22});
  const JsonField field(json, source);
  if (!json.is_object() || !json.contains("format") || json["format"] != "llmtrain checkpoint" ||
      !json.contains("version")) {
    field.refuse("not the manifest of a checkpoint");
  }
  if (const int64_t version = field["version"].count(); version != checkpoint_version) {
    field.refuse(fmt::format("its format has version {}; this program reads version {}", version, checkpoint_version));
  }
  field.check_keys(
      {"format", "version", "program", "step", "run", "ledger", "deck", "shards", "files", "units", "tensors"});
  Manifest manifest;
  manifest.step = field["step"].count(max_steps);
  manifest.program = field["program"].text();
  manifest.deck = field["deck"].text();
  field["ledger"].check_keys({"bytes", "hash"});
  manifest.ledger_bytes = field["ledger"]["bytes"].count();
  manifest.ledger_hash = field["ledger"]["hash"].digest();
  manifest.run = run_from(field["run"]);
  manifest.schema = schema_from(field["units"], field["tensors"], source);
  read_files(field["shards"], field["files"], manifest);
  return manifest;
}

}  // namespace llmtrain
