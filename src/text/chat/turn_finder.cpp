#include "text/chat/turn_finder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;

/// Bytes that may be rendered to find the turns of one row: the work grows with the square of their number.
constexpr size_t max_prefix_bytes = size_t{64} << 20;

[[noreturn]] void fail_template(const ChatTemplate& chat, const std::string& what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}", chat.name(), what));
}

size_t common_length(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// Returns what comes from a message but for its role, in order.
std::vector<TextRange> said_by(const RenderedChat& chat, size_t message) {
  std::vector<TextRange> said;
  for (const MessageRange& from : chat.messages) {
    if (from.message == message && !from.is_role) said.push_back(from.range);
  }
  return said;
}

/// Returns the end of the last bytes that come from the messages before `message`, of those that end by `limit`.
size_t end_of_earlier(const RenderedChat& chat, size_t message, size_t limit) {
  size_t end = 0;
  for (const MessageRange& from : chat.messages) {
    if (from.message < message && from.range.end <= limit) end = std::max(end, from.range.end);
  }
  return end;
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

/// Returns what a prompt of generation has before an opener of reasoning: its first line with the line breaks after it;
/// nothing of a prompt of one line.
std::string_view header_of_opener(std::string_view prompt) {
  const size_t end = prompt.find_first_not_of('\n', first_line(prompt).size());
  const std::string_view header = prompt.substr(0, end);
  return header.ends_with('\n') ? header : std::string_view();
}

/// Returns where a text that ends before a turn has the first line of the prompt of generation, or a beginning of it at
/// its end; its size if it has neither.
size_t find_prompt(std::string_view text, std::string_view line) {
  const size_t found = text.rfind(line);
  if (found != std::string_view::npos) return found;
  size_t length = std::min(text.size(), line.size());
  while (length > 0 && !text.ends_with(line.substr(0, length))) --length;
  return text.size() - length;
}

/// Returns the length of the header at the end of which a turn begins. `rest` is what stands between the message before
/// and what the turn says, `alone` what follows that message where the conversation ends with it and an answer is
/// asked for, and `prompt` the part of it that asks. The first turn of all has nothing before the prompt in `alone`.
/// `trains_opener` becomes true if the prompt ends with an opener of reasoning that the turn lacks; then the opener is
/// no part of any header.
size_t header_length(std::string_view rest, std::string_view alone, std::string_view prompt, bool& trains_opener) {
  if (!trains_opener && rest.starts_with(alone)) return alone.size();
  if (prompt.empty()) return common_length(rest, alone);
  const std::string_view line = first_line(prompt);
  const size_t before_prompt = alone.size() - std::min(prompt.size(), alone.size());
  const bool same_before = before_prompt > 0 && rest.starts_with(alone.substr(0, before_prompt));
  const size_t begin = same_before ? before_prompt : find_prompt(rest, line);
  const size_t same = common_length(rest.substr(begin), prompt);
  if (!trains_opener && same == prompt.size()) return begin + same;
  // The prompt goes on otherwise than the turn, with an opener of reasoning: its first line is the header. A prompt of
  // one line names no header, and all that the template writes for the message is the turn.
  trains_opener = true;
  return begin + header_of_opener(prompt.substr(0, same)).size();
}

bool ranges_overlap(const TextRange& a, const TextRange& b) { return a.begin < b.end && b.begin < a.end; }

bool is_tool(const ordered_json& message) { return message.contains("role") && message["role"] == "tool"; }

bool has_calls(const ordered_json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

bool has_content(const ordered_json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return content != message.end() && !content->is_null();
  return content->get_ref<const std::string&>().find_first_not_of(" \n\r\t") != std::string::npos;
}

Conversation first_messages(const Conversation& row, size_t count) {
  Conversation prefix;
  for (size_t i = 0; i < count; ++i) prefix.messages.push_back(row.messages[i]);
  prefix.tools = row.tools;
  return prefix;
}

}  // namespace

bool is_assistant(const ordered_json& message) {
  return message.is_object() && message.contains("role") && message["role"] == "assistant";
}

RenderedChat TurnFinder::render(size_t messages, bool add_generation_prompt) {
  return render(first_messages(row_, messages), add_generation_prompt);
}

RenderedChat TurnFinder::render(const Conversation& row, bool add_generation_prompt) {
  RenderedChat chat = rendering_.chat.render(row, rendering_.variables, {add_generation_prompt, rendering_.now});
  rendered_ += chat.text.size();
  if (rendered_ > max_prefix_bytes) {
    fail_template(
        rendering_.chat,
        "the conversation has too many turns to find them by rendering what comes before each: divide it, set "
        "chat.train_on = last, or use a template with generation blocks");
  }
  return chat;
}

std::vector<TextRange> TurnFinder::find(const std::vector<size_t>& messages) {
  std::vector<TextRange> all;
  const bool trained_opener = trains_opener_;
  for (const size_t message : messages) {
    const std::vector<TextRange> turn = find(message);
    std::ranges::copy_if(turn, std::back_inserter(all), [](const TextRange& range) { return range.begin < range.end; });
  }
  return trains_opener_ == trained_opener ? all : find(messages);
}

std::vector<TextRange> TurnFinder::find(size_t message) {
  if (!is_assistant(row_.messages[message])) return {find_other(message)};
  if (rendering_.chat.has_generation()) return find_blocks(message);
  return find_turn(message);
}

/// A block that has nothing of a turn, since that is empty, belongs to the next turn that no other block can be of, or
/// else to the turn of the block before.
std::vector<TextRange> TurnFinder::find_blocks(size_t message) {
  const std::vector<TextRange>& blocks = whole_.generated;
  const size_t none = row_.messages.size();
  if (owners_.empty()) {
    for (const TextRange& block : blocks) {
      const auto of_turn = [&](const MessageRange& from) {
        return !from.is_role && ranges_overlap(from.range, block) && is_assistant(row_.messages[from.message]);
      };
      const auto found = std::ranges::find_if(whole_.messages, of_turn);
      owners_.push_back(found == whole_.messages.end() ? none : found->message);
    }
    for (size_t b = 0; b < owners_.size(); ++b) {
      if (owners_[b] != none) continue;
      const auto after = std::find_if(owners_.begin() + static_cast<std::ptrdiff_t>(b), owners_.end(),
                                      [&](size_t owner) { return owner != none; });
      const size_t limit = after == owners_.end() ? none : *after;
      size_t next = b == 0 ? 0 : owners_[b - 1] + 1;
      while (next < limit && !is_assistant(row_.messages[next])) ++next;
      owners_[b] = next < limit || b == 0 ? next : owners_[b - 1];
    }
  }
  std::vector<TextRange> found;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (owners_[b] == message) found.push_back(blocks[b]);
  }
  return found;
}

std::vector<TextRange> TurnFinder::find_turn(size_t message) {
  if (auto parts = find_call(message)) return *parts;
  // No messages stand before the first one: the prompt of generation is the one that follows it.
  const RenderedChat before = render(std::max<size_t>(message, 1), true);
  TextRange turn{before.text.size(), whole_.text.size()};
  if (message == 0 || trains_opener_ || !whole_.text.starts_with(before.text)) {
    const std::optional<size_t> begin = find_begin(message, before, false);
    if (!begin) {
      const std::optional<TextRange> empty = find_empty_turn(message, false);
      if (!empty) fail_message(message);
      return {*empty};
    }
    turn.begin = *begin;
  }
  if (message > 0 && is_tool(row_.messages[message - 1])) turn.begin = skip_header(message, turn.begin);
  if (message + 1 == row_.messages.size()) return {turn};
  const RenderedChat through = render(message + 1, false);
  turn.end = find_end(message, turn.begin, through);
  if (last_inside(message, turn) == message) return {turn};
  return split_turn(message, turn, through);
}

/// Returns where a turn after the answer of a tool begins. A template can ask for nothing after such an answer, and yet
/// write the header of a turn.
size_t TurnFinder::skip_header(size_t message, size_t begin) {
  std::string header;
  try {
    const std::string asking = render(1, true).text;
    header = asking.substr(common_length(asking, render(1, false).text));
    if (trains_opener_) header = header_of_opener(header);
  } catch (const UserError&) {  // the template refuses a conversation of one message
  }
  const std::vector<TextRange> said = said_by(whole_, message);
  const size_t limit = said.empty() ? begin + header.size() : said.front().begin;
  const size_t earlier = said.empty() ? begin : std::min(begin, end_of_earlier(whole_, message, limit));
  const size_t found = std::string_view(whole_.text).substr(0, limit).find(header, earlier);
  return found == std::string_view::npos ? begin : std::max(begin, found + header.size());
}

/// Returns the last of the other messages of which something stands in a turn; the turn's own if there is none.
size_t TurnFinder::last_inside(size_t message, const TextRange& turn) const {
  size_t last = message;
  for (const MessageRange& from : whole_.messages) {
    if (from.message == message || !ranges_overlap(from.range, turn)) continue;
    if (from.message < message) fail_message(message);
    last = std::max(last, from.message);
  }
  return last;
}

/// Divides a turn with the answers of tools inside, as Gemma 4 writes them: between the calls and the content of one
/// message. `through` is the conversation up to the turn, which has no answers yet.
std::vector<TextRange> TurnFinder::split_turn(size_t message, const TextRange& turn, const RenderedChat& through) {
  const std::vector<TextRange> here = said_by(whole_, message), there = said_by(through, message);
  if (here.empty() || here.front().begin < turn.begin) fail_message(message);
  const std::string_view whole = std::string_view(whole_.text).substr(here.front().begin);
  // An earlier turn can lack its reasoning, so that it begins with something that is said later there.
  size_t same = 0, first = 0;
  for (const TextRange& said : there) {
    const size_t length = common_length(std::string_view(through.text).substr(said.begin), whole);
    if (length > same) first = said.begin;
    same = std::max(same, length);
  }
  std::string rest;
  for (const TextRange& said : there) {
    if (said.end <= first + same) continue;
    if (rest.empty() && said.begin < first + same) same = said.begin - std::min(first, said.begin);
    rest.append(through.text, said.begin, said.end - said.begin);
  }
  std::vector<TextRange> parts{{turn.begin, here.front().begin + same}};
  if (same == 0 || last_inside(message, parts[0]) != message) fail_message(message);
  if (rest.empty()) return parts;
  size_t piece = here.size(), length = 0;
  std::string found;
  while (piece > 0 && length < rest.size() && here[piece - 1].begin >= parts[0].end) {
    const TextRange& said = here[--piece];
    found.insert(0, whole_.text, said.begin, said.end - said.begin);
    length = found.size();
  }
  if (found != rest) fail_message(message);
  TextRange after{here[piece].begin, whole_.text.size()};
  const size_t last = last_inside(message, turn);
  if (last + 1 < row_.messages.size()) after.end = find_end(message, after.begin, render(last + 1, false));
  if (last_inside(message, after) != message) fail_message(message);
  parts.push_back(after);
  return parts;
}

/// Finds a turn that calls tools where the answers lie inside of the turn, and a content or an answer is empty: by the
/// places that they would have. Returns nothing for other turns. The first call of a row shows where answers lie.
std::optional<std::vector<TextRange>> TurnFinder::find_call(size_t message) {
  if (!answers_inside_ || !has_calls(row_.messages[message])) return std::nullopt;
  if (message + 1 == row_.messages.size() || !is_tool(row_.messages[message + 1])) return std::nullopt;
  std::vector<size_t> added;
  for (size_t i = message; i < row_.messages.size() && (i == message || is_tool(row_.messages[i])); ++i) {
    if (!has_content(row_.messages[i])) added.push_back(i);
  }
  if (added.empty()) return std::nullopt;
  Conversation filled = row_;
  for (const size_t i : added) filled.messages[i]["content"] = "x";
  std::vector<TextRange> parts;
  RenderedChat whole;
  try {
    whole = render(filled, false);
    TurnFinder finder(rendering_, filled, whole);
    finder.rendered_ = rendered_;
    parts = finder.find_turn(message);
    rendered_ = finder.rendered_;
  } catch (const UserError&) {  // the turn is found as others are
  }
  answers_inside_ = parts.size() > 1;
  if (!answers_inside_) return std::nullopt;
  if (added.front() == message) parts.pop_back();
  const std::string_view text = whole.text;
  if (!whole_.text.starts_with(text.substr(0, parts[0].end))) return std::nullopt;
  if (parts.size() == 1) return parts;
  TextRange& after = parts[1];
  if (!whole_.text.ends_with(text.substr(after.begin))) return std::nullopt;
  after = {whole_.text.size() - (text.size() - after.begin), whole_.text.size() - (text.size() - after.end)};
  return parts;
}

/// Returns where a turn begins by the bytes that come from messages; nothing if none come from it. `in_prompt`: all
/// that the prompt of generation gives, and the text has, comes before it, as TRL divides a prompt and its completion.
std::optional<size_t> TurnFinder::find_begin(size_t message, const RenderedChat& before, bool in_prompt) {
  const std::vector<TextRange> said = said_by(whole_, message);
  if (said.empty()) return std::nullopt;
  const std::string_view text = whole_.text, asking = before.text;
  const RenderedChat closed = render(std::max<size_t>(message, 1), false);
  const std::string_view prompt = asking.substr(common_length(asking, closed.text));
  if (message == 0 && prompt.empty()) return said.front().begin;
  const size_t earlier = end_of_earlier(whole_, message, said.front().begin);
  const std::string_view alone = message == 0 ? prompt : asking.substr(end_of_earlier(before, message, asking.size()));
  const std::string_view rest = text.substr(earlier, said.front().begin - earlier);
  const size_t header = header_length(rest, alone, prompt, trains_opener_);
  return earlier + (in_prompt ? std::max(header, common_length(rest, alone)) : header);
}

/// Finds a turn, or the completion that begins with it, of which nothing stands in the text, by the place that a
/// content would have.
std::optional<TextRange> TurnFinder::find_empty_turn(size_t message, bool in_prompt) {
  const std::string content = "x";
  Conversation filled = row_;
  filled.messages[message]["content"] = content;
  const RenderedChat whole = render(filled, false);
  const std::vector<TextRange> said = said_by(whole, message);
  if (said.size() != 1) return std::nullopt;
  std::string without = whole.text;
  without.erase(said.front().begin, content.size());
  if (without != whole_.text) return std::nullopt;
  TurnFinder finder(rendering_, filled, whole);
  finder.rendered_ = rendered_;
  const std::vector<TextRange> parts =
      in_prompt ? std::vector{TextRange{finder.find_border(message), whole.text.size()}} : finder.find_turn(message);
  rendered_ = finder.rendered_;
  if (parts.size() != 1) return std::nullopt;
  TextRange turn = parts[0];
  turn.end -= content.size();
  return turn;
}

TextRange TurnFinder::find_other(size_t message) {
  const std::vector<TextRange> said = said_by(whole_, message);
  if (said.empty()) return {0, 0};
  TextRange turn{said.front().begin, said.back().end};
  try {
    if (message + 1 < row_.messages.size()) turn.end = find_end(message, turn.begin, render(message + 1, false));
  } catch (const UserError&) {  // the template refuses a conversation that ends here: the end of the turn is not known
  }
  for (const MessageRange& from : whole_.messages) {
    if (from.message != message && ranges_overlap(from.range, turn)) turn.end = std::max(from.range.begin, turn.begin);
  }
  return turn;
}

/// Returns the end of a turn; `through` is the conversation up to it.
size_t TurnFinder::find_end(size_t message, size_t begin, const RenderedChat& through) const {
  std::string there;
  size_t end_there = std::min(begin, through.text.size()), end = begin;
  for (const TextRange& said : said_by(through, message)) {
    there.append(through.text, said.begin, said.end - said.begin);
    end_there = std::max(end_there, said.end);
  }
  // A later turn can repeat something of this one, such as the name of a function, and the template can drop what this
  // one began with: the turn ends with the most that it says there, too.
  std::string here;
  const std::vector<TextRange> all = said_by(whole_, message);
  std::vector<size_t> lengths;
  for (const TextRange& said : all) {
    here.append(whole_.text, said.begin, said.end - said.begin);
    lengths.push_back(here.size());
  }
  size_t count = all.size();
  while (count > 0 && !there.ends_with(std::string_view(here).substr(0, lengths[count - 1]))) --count;
  if (count == 0) count = all.size();
  if (count > 0) end = std::max(end, all[count - 1].end);
  return end + common_end(std::string_view(through.text).substr(end_there), std::string_view(whole_.text).substr(end));
}

/// Returns the length of the end of a turn, which the template writes after its content whether or not messages follow.
/// `alone` is what stands there if none follows: it may go on with a text for the end of a conversation (EOS).
size_t TurnFinder::common_end(std::string_view alone, std::string_view followed) const {
  constexpr size_t max_offset = 256;  // bytes that a template may write before the end of the last turn only
  size_t same = 0, first = 0;
  for (size_t begin = 0; begin < std::min(alone.size(), max_offset); ++begin) {
    const std::string_view rest = alone.substr(begin);
    const auto length = static_cast<size_t>(std::ranges::mismatch(rest, followed).in1 - rest.begin());
    if (length <= same) continue;
    same = length;
    first = begin;
  }
  alone.remove_prefix(first);
  if (same == alone.size()) return same;
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
  rendering_.tokenizer.encode_with_ranges(alone, ids, ranges);
  for (size_t i = ids.size(); i-- > 0;) {
    if (!rendering_.tokenizer.is_special(ids[i])) continue;
    if (ranges[i].end <= same) return ranges[i].end;
    same = std::min(same, ranges[i].begin);
  }
  // The texts after the end can begin alike, such as <|endoftext|> and <|user|>, also where they are not tokens.
  for (const auto& [name, value] : rendering_.variables) {
    if (!value.is_string() || !name.ends_with("_token")) continue;
    const auto& token = value.get_ref<const std::string&>();
    const size_t begin = alone.find(token, same - std::min(same, token.size()));
    if (begin < same && begin + token.size() > same) same = begin;
  }
  return same;
}

size_t TurnFinder::find_border(size_t message) {
  const RenderedChat before = render(message, true);
  if (whole_.text.starts_with(before.text)) return before.text.size();
  if (const std::optional<size_t> begin = find_begin(message, before, true)) return *begin;
  const std::optional<TextRange> empty =
      is_assistant(row_.messages[message]) ? find_empty_turn(message, true) : std::nullopt;
  if (!empty) fail_message(message);
  return empty->begin;
}

void TurnFinder::fail_message(size_t message) const {
  fail_template(rendering_.chat,
                fmt::format("message {} cannot be distinguished from the others in the rendered text; a template with "
                            "generation blocks marks the turns of the assistant itself",
                            message + 1));
}

}  // namespace llmtrain
