#include "convert/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "convert/resolve.hpp"
#include "convert/tables.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain::convert {
namespace {

/// A key of the settings whose value is not divided further.
struct Setting {
  std::string file;
  std::string name;  ///< as in the file, with the names of maps before it
  std::string key;   ///< in the system's table
  SettingValue value;
  bool has_nulls = false;  ///< the value was a list with items that are null, which it has no more
};

using Kind = SettingValue::Kind;

const SettingValue* find_dotted(const SettingValue& root, std::string_view name) {
  const SettingValue* at = &root;
  for (size_t begin = 0; begin <= name.size() && at != nullptr;) {
    const size_t end = std::min(name.find('.', begin), name.size());
    at = at->find(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return at;
}

/// Longer lists are settings as a whole, so that reports stay short.
constexpr size_t most_items = 64;

bool is_list_of_maps(const SettingValue& value) {
  const bool maps = std::ranges::all_of(
      value.items, [](const SettingValue& item) { return item.is(Kind::map) && !item.members.empty(); });
  return value.is(Kind::list) && !value.items.empty() && value.items.size() <= most_items && maps;
}

/// Drops items that are null, as an unquoted none is in YAML. A list of nothing else is null itself.
void drop_nulls(SettingValue& value) {
  for (SettingValue& item : value.items) drop_nulls(item);
  for (SettingMember& member : value.members) drop_nulls(member.second);
  if (!value.is(Kind::list)) return;
  const bool had_items = !value.items.empty();
  std::erase_if(value.items, [](const SettingValue& item) { return item.is(Kind::null); });
  if (had_items && value.items.empty()) value = SettingValue::scalar(Kind::null, "", value.line);
}

class Flattener {
 public:
  Flattener(const SettingValue& root, const std::string& file, const System& system)
      : root_(root), file_(file), system_(system) {}

  std::vector<Setting> run() {
    walk(root_, "", "");
    return std::move(settings_);
  }

 private:
  /// `prefix`: of names as in the file; `place`: the same without the numbers of list items.
  void walk(const SettingValue& map, const std::string& prefix, const std::string& place) {
    if (!map.items.empty()) {
      settings_.push_back(
          {file_, prefix + "#", "#", SettingValue::scalar(Kind::reference, map.print(), map.line), false});
    }
    for (const auto& [member, value] : map.members) {
      const std::string last = value.callee.empty() ? member : value.callee.substr(value.callee.rfind('.') + 1);
      const std::string name = prefix + last, key(without_prefix(system_, place + last));
      const bool entries_below = has_entries_below(system_, key);
      const bool divided =
          value.is(Kind::map) && !value.members.empty() && (find_entry(system_, key, "") == nullptr || entries_below);
      if (divided || (value.members.empty() && !value.items.empty() && !value.callee.empty())) {
        walk(value, name + ".", place + last + ".");
      } else if (entries_below && is_list_of_maps(value)) {
        for (size_t i = 0; i < value.items.size(); ++i) {
          walk(value.items[i], fmt::format("{}.{}.", name, i), place + last + ".");
        }
      } else {
        const bool has_nulls = std::ranges::any_of(value.items, [](const auto& item) { return item.is(Kind::null); });
        settings_.push_back({file_, name, key, interpolated(value), has_nulls});
      }
    }
  }

  SettingValue interpolated(SettingValue value) const {
    drop_nulls(value);
    constexpr int most = 16;  // references in a text
    for (int i = 0; i < most && value.is(Kind::text); ++i) {
      const size_t begin = value.text.find("${");
      const size_t end = begin == std::string::npos ? begin : value.text.find('}', begin);
      if (end == std::string::npos) break;
      std::string name = value.text.substr(begin + 2, end - begin - 2);
      const SettingValue* const other = find_dotted(root_, name);
      const size_t colon = name.find("env:");
      std::string text;
      if (other != nullptr && other->items.empty() && other->members.empty()) {
        text = other->text;
      } else if (colon != std::string::npos) {
        text = "${" + name.substr(colon + 4) + "}";
      } else {
        break;
      }
      value.text = value.text.substr(0, begin) + text + value.text.substr(end + 1);
      if (value.text.size() > 4096) break;
    }
    return value;
  }

  const SettingValue& root_;
  const std::string& file_;
  const System& system_;
  std::vector<Setting> settings_;
};

/// Divides the settings into keys, down to values or to maps that the system's table names as a whole. Items of a list
/// of maps are divided, too, where the table has keys below it: "datasets.0.path" has the key "datasets.path".
/// References ${a.b} to other values of the file are replaced.
std::vector<Setting> flatten(const SettingValue& root, const std::string& file, const System& system) {
  return Flattener(root, file, system).run();
}

using Kind = SettingValue::Kind;

/// True for a value, or a list of values, that `words` has.
bool is_listed(std::string_view words, const SettingValue& value) {
  const auto listed = [&](const SettingValue& one) { return has_word(words, one.text); };
  return value.items.empty() ? listed(value) : std::ranges::all_of(value.items, listed);
}

/// True for null, and for a list of the text none alone, as programs write "no one of these".
bool is_unset(const SettingValue& value) {
  const auto is_none = [](const SettingValue& item) { return item.is(Kind::text) && lower_case(item.text) == "none"; };
  return value.is(Kind::null) ||
         (value.is(Kind::list) && !value.items.empty() && std::ranges::all_of(value.items, is_none));
}

bool is_off(const SettingValue& value, std::string_view off) {
  const bool empty = value.text.empty() && value.items.empty() && value.members.empty() && value.callee.empty();
  if (is_unset(value) || empty) return true;
  const std::string text = lower_case(value.text);
  return text == "false" || text == "no" || text == "none" || value.number() == 0.0 || is_listed(off, value);
}

/// Replaces the value, or the items of a list, by our names. Returns what is wrong, or "".
std::string translate(std::string_view values, SettingValue& value) {
  if (values.empty()) return "";
  if (value.is(Kind::list)) {
    std::vector<SettingValue> items;
    for (SettingValue& item : value.items) {
      if (std::string wrong = translate(values, item); !wrong.empty()) return wrong;
      if (!item.text.empty()) items.push_back(item);
    }
    value.items = items;
    return "";
  }
  const std::optional<std::string> ours = translated(values, value.text);
  std::string known;
  each_word(values, [&known](std::string_view word) {
    known += (known.empty() ? "" : ", ") + std::string(word.substr(0, word.find('=')));
  });
  if (!ours) return fmt::format("the value {} has no counterpart here (known: {})", value.print(), known);
  value = *ours == "true" || *ours == "false" ? SettingValue::scalar(Kind::boolean, *ours, value.line)
                                              : SettingValue::scalar(Kind::text, *ours, value.line);
  return "";
}

std::string fact_text(const SettingValue& value) {
  std::string text = value.text;
  for (const SettingValue& item : value.items) text += (text.empty() ? "" : " ") + item.text;
  return text;
}

template <class Take>
void each_target(std::string_view target, const Take& take) {
  for (size_t begin = 0; begin < target.size();) {
    const size_t end = std::min(target.find(", ", begin), target.size());
    take(target.substr(begin, end - begin));
    begin = end + 2;
  }
}

/// True for a setting whose list belongs to another one, place by place.
bool counts_places(const Entry& entry) {
  bool counts = false;
  each_target(entry.target, [&counts](std::string_view key) {
    counts = counts || key == "dpo.loss" || key == "dpo.loss_weights" || key == "rewards.weights";
  });
  return counts;
}

class Converter {
 public:
  Converter(const System& system, const ConvertOptions& options, const DeckKeys& keys)
      : system_(system), draft_(keys, options.ranks), task_(options.task) {}

  Conversion run(const SettingValue& root, const std::string& path) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    draft_.folder = folder.empty() ? "." : folder.string();
    const std::vector<Setting> settings = flatten(root, path, system_);
    find_task(settings);
    apply_all(system_, settings);
    for (size_t i = 0; i < draft_.files.size(); ++i) {  // files may name no further ones
      const std::string file = draft_.files[i];
      const System& deepspeed = *find_system(systems(), "deepspeed");
      const SettingValue more = read_settings(file);
      apply_all(deepspeed, flatten(more, file, deepspeed));
    }
    apply_defaults(settings);
    if (!task_.empty()) {
      draft_.from("the kind of the settings", false);
      draft_.set_fact("task", task_);
    }
    resolve(draft_);
    return finish(path);
  }

 private:
  /// The task decides what some keys mean, and the defaults.
  void find_task(const std::vector<Setting>& settings) {
    if (!task_.empty()) return;
    for (const Setting& setting : settings) {
      const Entry* const entry = find_entry(system_, setting.key, "");
      if (entry == nullptr || entry->fact != "task") continue;
      SettingValue value = setting.value;
      if (translate(entry->values, value).empty() && !value.text.empty()) {
        task_ = value.text;
        return;
      }
    }
    for (const Hint& hint : system_.hints) {
      if (task_.empty() && is_given(settings, hint.key)) task_ = hint.task;
    }
  }

  /// True if the settings have the key, other than as null or false, or the call of a Python class.
  static bool is_given(const std::vector<Setting>& settings, std::string_view key) {
    return std::ranges::any_of(settings, [call = std::string(key) + ".", key](const Setting& setting) {
      const bool is_false = setting.value.is(Kind::null) || setting.value.boolean() == false;
      return (setting.key == key && !is_false) || setting.name.starts_with(call);
    });
  }

  void apply_all(const System& system, const std::vector<Setting>& settings) {
    for (const Setting& setting : settings) {
      const Entry* const entry = find_entry(system, setting.key, task_);
      Finding finding{setting.file, setting.value.line, setting.name, Effect::unknown, ""};
      draft_.from(fmt::format("{} in line {}", printable(setting.name), setting.value.line), false);
      if (setting.key == "#") {
        finding.effect = Effect::no_effect;
        finding.text = "arguments without names are objects of the program: " + printable(setting.value.text);
      } else if (entry == nullptr) {
        if (setting.value.is(Kind::unreadable)) throw UserError(ExitCode::bad_content, setting.value.text);
        finding.text = unknown_text(system, setting.key);
      } else if (setting.has_nulls && counts_places(*entry)) {
        finding.effect = Effect::unsupported;
        finding.text = "an item of the list is null, but items are used by position: write a value for each";
      } else {
        apply(*entry, setting.value, finding);
      }
      findings_.push_back(std::move(finding));
    }
  }

  std::string unknown_text(const System& system, const std::string& key) const {
    const std::vector<std::string> names = key_names(system);
    const std::vector<std::string_view> views(names.begin(), names.end());
    return fmt::format("unknown to {}{}", system.title, did_you_mean(key, views));
  }

  void apply(const Entry& entry, SettingValue value, Finding& finding) {
    finding.effect = entry.effect;
    finding.text = entry.note;
    if (value.is(Kind::unreadable)) return report_unreadable(entry, value, finding);
    if (entry.effect == Effect::unsupported && is_off(value, entry.off)) {
      finding.effect = Effect::no_effect;
      finding.text = is_listed(entry.off, value) ? "this value changes nothing here" : "off, as it always is here";
    }
    if (entry.effect != Effect::mapped) return;
    if (is_unset(value)) {
      finding.effect = Effect::no_effect;
      finding.text = "not set, as if it were absent";
    } else if (lower_case(value.text) == "auto" && entry.values.find("auto") == std::string_view::npos) {
      finding.effect = Effect::no_effect;
      finding.text = "auto: other settings decide";
    } else if (entry.rule == nullptr && translated(entry.values, value.text) == "") {
      finding.effect = Effect::no_effect;
      finding.text = "this value sets nothing here";
    } else if (const std::string wrong = take(entry, value); !wrong.empty()) {
      finding.effect = Effect::unsupported;
      finding.text = entry.note.empty() ? wrong : fmt::format("{}; {}", wrong, entry.note);
    } else {
      finding.text = entry.target;  // finish() adds the values
      mapped_.push_back({findings_.size(), draft_.origin(), entry.note});
    }
  }

  /// A value that is not a literal is an error where the deck's results depend on it.
  void report_unreadable(const Entry& entry, const SettingValue& value, Finding& finding) const {
    bool decides = false;
    each_target(entry.target, [&](std::string_view key) {
      const DeckKeys::Key* const deck_key = draft_.keys().find(key);
      decides = decides || deck_key == nullptr || deck_key->change != Change::nothing;
    });
    if (decides) throw UserError(ExitCode::bad_content, value.text);
    if (entry.effect == Effect::mapped) finding.effect = Effect::unsupported;
    finding.text = "not readable: " + printable(value.text);
  }

  /// Sets what the entry says. Returns what is wrong, or "".
  std::string take(const Entry& entry, SettingValue& value) {
    if (value.is(Kind::reference) && entry.rule == nullptr && entry.values.empty()) {
      return fmt::format("{} is a name of the program: write the value into the deck", value.print());
    }
    if (entry.rule != nullptr && entry.fact.empty()) return entry.rule(draft_, value);
    const SettingValue original = value;
    if (std::string wrong = translate(entry.values, value); !wrong.empty()) return wrong;
    if (!entry.values.empty() && value.text.empty() && value.items.empty()) return "";
    if (std::string wrong = wrong_fact(entry.fact, value); !wrong.empty()) return wrong;
    if (!entry.fact.empty()) draft_.set_fact(entry.fact, fact_text(value));
    if (entry.rule != nullptr) return entry.rule(draft_, original);
    if (!entry.fact.empty()) return "";
    std::string wrong;
    each_target(entry.target, [&](std::string_view key) {
      if (wrong.empty()) wrong = draft_.set(key, value);
    });
    return wrong;
  }

  void apply_defaults(const std::vector<Setting>& settings) {
    for (const Default& one : system_.defaults) {
      if (!one.with.empty() && !is_given(settings, one.with)) continue;
      if (!one.task.empty() && !has_word(one.task, task_.empty() ? "-" : task_)) continue;
      const Entry* const entry = find_entry(system_, one.key, task_);
      LLMTRAIN_CHECK(entry != nullptr, fmt::format("no entry for the default {}", one.key));
      draft_.from(fmt::format("default of {}: {}", system_.title, one.key), true);
      SettingValue value = plain_scalar(std::string(one.value), 0);
      const std::string wrong = take(*entry, value);
      LLMTRAIN_CHECK(wrong.empty(), fmt::format("the default {}: {}", one.key, wrong));
    }
  }

  /// Names the deck's values that came of the mapped settings.
  void describe_mapped() {
    for (const Mapped& mapped : mapped_) {
      Finding& finding = findings_[mapped.finding];
      std::string text, names = finding.text;
      each_target(names, [&](std::string_view key) {
        const Draft::Given* const given = draft_.find(key);
        if (!given && !draft_.needs().contains(key)) return;
        text += (text.empty() ? "" : ", ") +
                (given ? fmt::format("{} = {}", key, given->text) : fmt::format("{}, which must be filled in", key));
      });
      if (const Draft::Refusal* const refusal = draft_.refusal(mapped.origin)) {
        finding.effect = refusal->effect;
        text = refusal->why;
      }
      if (text.empty()) text = fmt::format("{}: decided by other settings or not used by this task", names);
      finding.text = mapped.note.empty() ? text : fmt::format("{} ({})", text, mapped.note);
    }
  }

  Conversion finish(const std::string& path) {
    describe_mapped();
    Conversion out;
    out.system = &system_;
    out.findings = std::move(findings_);
    out.remarks = draft_.remarks();
    for (const auto& [key, what] : draft_.needs()) out.needs.push_back(fmt::format("{}: {}", key, what));
    out.deck = write_draft(draft_, fmt::format("From {} ({}).", printable(path), system_.title), out);
    return out;
  }

  const System& system_;
  Draft draft_;
  std::string task_;
  std::vector<Finding> findings_;
  struct Mapped {
    size_t finding;  ///< its index
    std::string origin;
    std::string_view note;
  };
  std::vector<Mapped> mapped_;
};

struct Score {
  int64_t keys = 0;
  int64_t unknown = 0;  ///< keys that the system's tables do not have
  int64_t own = 0;      ///< keys of its own table
};

Score score_of(const SettingValue& root, const System& system) {
  Score score;
  for (const Setting& setting : flatten(root, "", system)) {
    if (setting.key == "#") continue;
    ++score.keys;
    if (find_entry(system, setting.key, "") == nullptr) ++score.unknown;
    for (const Entry& entry : system.entries) {
      if (has_word(entry.keys, setting.key)) {
        ++score.own;
        break;
      }
    }
  }
  return score;
}

/// Throws where most keys belong to no program, such as in the configuration of a model.
void check_score(const Score& score, const System& best, const SettingValue& root, const std::string& path) {
  if (score.unknown * 2 <= score.keys) return;
  std::string what =
      fmt::format("not the settings of a known program: {} of {} keys are unknown to {}, the nearest one",
                  score.unknown, score.keys, best.title);
  if (root.find("architectures") || root.find("model_type")) what += "; a model's config.json belongs to model.path";
  if (root.find("log_history")) what += "; trainer_state.json has the metrics of a run, and not its settings";
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}; --from NAME reads it as settings of NAME", path, what));
}

const System& choose_system(const std::string& name, const SettingValue& root, const std::string& path) {
  if (const System* const named = find_system(systems(), name)) return *named;
  if (name != "auto") {
    std::vector<std::string_view> names = {"auto"};
    names.insert(names.end(), system_names().begin(), system_names().end());
    throw UserError(ExitCode::command_line, fmt::format("command line: --from {}: no such system{}; one of {}",
                                                        printable(name), did_you_mean(name, names), joined(names)));
  }
  const System* best = nullptr;
  Score best_score;
  for (const System& system : systems()) {
    const Score score = score_of(root, system);
    const bool better = best == nullptr || score.unknown < best_score.unknown ||
                        (score.unknown == best_score.unknown && score.own > best_score.own);
    if (better) {
      best = &system;
      best_score = score;
    }
  }
  LLMTRAIN_CHECK(best != nullptr, "there are systems");
  check_score(best_score, *best, root, path);
  return *best;
}

}  // namespace

size_t Conversion::count(Effect effect) const {
  return static_cast<size_t>(std::ranges::count(findings, effect, &Finding::effect));
}

Conversion convert_settings(const std::string& path, const ConvertOptions& options, const DeckKeys& keys) {
  const SettingValue root = read_settings(path);
  if (!root.is(Kind::map)) throw UserError(ExitCode::bad_content, path + ":1: settings are names with values");
  if (root.members.empty()) throw UserError(ExitCode::bad_content, path + ":1: the file has no settings");
  const System& system = choose_system(options.from, root, path);
  return Converter(system, options, keys).run(root, path);
}

}  // namespace llmtrain::convert
