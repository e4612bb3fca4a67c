// Settings in YAML, from the events of libyaml: no tag makes an object, and copies that aliases make are counted.
#include <yaml.h>

#include <map>
#include <memory>

#include "convert/settings.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

using Kind = SettingValue::Kind;

struct EventDeleter {
  void operator()(yaml_event_t* event) const {
    yaml_event_delete(event);
    delete event;
  }
};
using Event = std::unique_ptr<yaml_event_t, EventDeleter>;

int64_t count_values(const SettingValue& value) {
  int64_t values = 1;
  for (const SettingValue& item : value.items) values += count_values(item);
  for (const auto& member : value.members) values += count_values(member.second);
  return values;
}

std::string text_of(const yaml_char_t* text) { return text == nullptr ? "" : reinterpret_cast<const char*>(text); }

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : builder_(file) {
    yaml_parser_initialize(&parser_);
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~Reader() { yaml_parser_delete(&parser_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  SettingValue run() {
    next();  // start of the stream
    Event event = next();
    if (event->type == YAML_STREAM_END_EVENT) return SettingValue::scalar(Kind::map, "", 1);
    SettingValue root = value(next(), 1);
    next();  // end of the document
    event = next();
    if (event->type != YAML_STREAM_END_EVENT) builder_.fail(line_of(*event), "a second document; keep one in a file");
    return root;
  }

 private:
  static int line_of(const yaml_event_t& event) { return static_cast<int>(event.start_mark.line) + 1; }

  Event next() {
    auto* event = new yaml_event_t();
    if (yaml_parser_parse(&parser_, event) == 0) {
      delete event;
      builder_.fail(static_cast<int>(parser_.problem_mark.line) + 1,
                    parser_.problem == nullptr ? "not YAML" : std::string(parser_.problem));
    }
    return Event(event);
  }

  SettingValue value(const Event& event, int depth) {
    const int line = line_of(*event);
    builder_.count(line);
    builder_.check_depth(depth, line);
    switch (event->type) {
      case YAML_SCALAR_EVENT:
        return anchored(event->data.scalar.anchor, scalar(*event, line));
      case YAML_ALIAS_EVENT:
        return copy(text_of(event->data.alias.anchor), line);
      case YAML_SEQUENCE_START_EVENT:
        return anchored(event->data.sequence_start.anchor, list(*event, depth));
      case YAML_MAPPING_START_EVENT:
        return anchored(event->data.mapping_start.anchor, map(*event, depth));
      default:
        builder_.fail(line, "a value is missing");
    }
  }

  void check_tag(const yaml_char_t* tag, int line) const {
    const std::string text = text_of(tag);
    for (const std::string_view known :
         {"", "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float",
          "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}) {
      if (text == known) return;
    }
    builder_.fail(line, "the tag " + printable(text) + " denotes an object of a program; write its values");
  }

  SettingValue scalar(const yaml_event_t& event, int line) const {
    const auto& data = event.data.scalar;
    check_tag(data.tag, line);
    std::string text(reinterpret_cast<const char*>(data.value), data.length);
    const bool plain = data.style == YAML_PLAIN_SCALAR_STYLE && text_of(data.tag) != "tag:yaml.org,2002:str";
    return plain ? plain_scalar(text, line) : SettingValue::scalar(Kind::text, std::move(text), line);
  }

  SettingValue list(const yaml_event_t& start, int depth) {
    SettingValue out = SettingValue::scalar(Kind::list, "", line_of(start));
    check_tag(start.data.sequence_start.tag, out.line);
    for (Event event = next(); event->type != YAML_SEQUENCE_END_EVENT; event = next()) {
      out.items.push_back(value(event, depth + 1));
    }
    return out;
  }

  SettingValue map(const yaml_event_t& start, int depth) {
    SettingValue out = SettingValue::scalar(Kind::map, "", line_of(start));
    check_tag(start.data.mapping_start.tag, out.line);
    std::vector<SettingValue> merged;
    for (Event event = next(); event->type != YAML_MAPPING_END_EVENT; event = next()) {
      const int line = line_of(*event);
      if (event->type != YAML_SCALAR_EVENT) builder_.fail(line, "keys must be strings");
      const std::string name(reinterpret_cast<const char*>(event->data.scalar.value), event->data.scalar.length);
      SettingValue member = value(next(), depth + 1);
      if (member.items.empty() && member.members.empty()) member.line = line;
      if (name == "<<") {
        merged.push_back(std::move(member));
      } else {
        builder_.add(out, name, std::move(member));
      }
    }
    for (const SettingValue& one : merged) merge(one, out);
    return out;
  }

  /// The merge key `<<`: members that the map does not have itself.
  void merge(const SettingValue& from, SettingValue& map) const {
    for (const SettingValue& item : from.items) merge(item, map);
    for (const auto& [name, value] : from.members) {
      if (map.find(name) == nullptr) map.members.push_back({name, value});
    }
  }

  SettingValue anchored(const yaml_char_t* anchor, SettingValue value) {
    if (anchor != nullptr) anchors_[text_of(anchor)] = value;
    return value;
  }

  SettingValue copy(const std::string& anchor, int line) {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) builder_.fail(line, "no anchor &" + printable(anchor) + " precedes this alias");
    builder_.count(line, count_values(found->second));
    return found->second;
  }

  SettingsBuilder builder_;
  yaml_parser_t parser_{};
  std::map<std::string, SettingValue> anchors_;
};

}  // namespace

SettingValue read_yaml_settings(std::string_view text, const std::string& file) { return Reader(text, file).run(); }

}  // namespace llmtrain
