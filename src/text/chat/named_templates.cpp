#include "text/chat/named_templates.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "core/deck/suggestion.hpp"
#include "core/find_entry.hpp"

namespace llmtrain {
namespace {

// The text of a message whose content is a text or a list of parts; every template begins with it. Line ends of these
// sources are removed by "-" at the tags.
#define LLMTRAIN_CHAT_CONTENT                                                                                       \
  "{%- macro content_of(message) -%}"                                                                               \
  "{%- if message.tool_calls or message.role == 'tool' -%}"                                                         \
  "{{- raise_exception('a named template has no form for tool calls: name the model\\'s own template') -}}"         \
  "{%- endif -%}"                                                                                                   \
  "{%- if message.content is string -%}{{- message.content -}}"                                                     \
  "{%- else -%}{%- for part in message.content -%}"                                                                 \
  "{%- if part.type != 'text' -%}{{- raise_exception('a part of the content is no text') -}}{%- endif -%}"          \
  "{{- part.text -}}"                                                                                               \
  "{%- endfor -%}{%- endif -%}"                                                                                     \
  "{%- endmacro -%}"                                                                                                \
  "{%- if tools -%}{{- raise_exception('a named template has no form for tools: name the model\\'s own template') " \
  "-}}{%- endif -%}"

// Takes a system message off the front: `system` (maybe undefined) and `turns`, which must alternate.
#define LLMTRAIN_CHAT_ALTERNATING                                                             \
  "{%- set turns = messages -%}"                                                              \
  "{%- if messages[0].role == 'system' -%}"                                                   \
  "{%- set system = content_of(messages[0]) -%}{%- set turns = messages[1:] -%}{%- endif -%}" \
  "{%- for message in turns -%}"                                                              \
  "{%- if message.role != ('user' if loop.index0 % 2 == 0 else 'assistant') -%}"              \
  "{{- raise_exception('the roles must alternate user/assistant/user/assistant ...') -}}"     \
  "{%- endif -%}{%- endfor -%}"

// The messages of ChatML.
#define LLMTRAIN_CHATML                                                               \
  "{%- for message in messages -%}"                                                   \
  "{{- '<|im_start|>' + message.role + '\\n' -}}"                                     \
  "{%- if message.role == 'assistant' -%}"                                            \
  "{%- generation -%}{{- content_of(message) + '<|im_end|>' -}}{%- endgeneration -%}" \
  "{%- else -%}{{- content_of(message) + '<|im_end|>' -}}{%- endif -%}"               \
  "{{- '\\n' -}}"                                                                     \
  "{%- endfor -%}"                                                                    \
  "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"

constexpr std::string_view chatml = LLMTRAIN_CHAT_CONTENT LLMTRAIN_CHATML;

constexpr std::string_view qwen = LLMTRAIN_CHAT_CONTENT
    "{%- if messages[0].role != 'system' -%}"
    "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' -}}"
    "{%- endif -%}" LLMTRAIN_CHATML;

constexpr std::string_view qwen3 = LLMTRAIN_CHAT_CONTENT
    "{%- set ns = namespace(last_user=-1) -%}"
    "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif "
    "-%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.role == 'assistant' -%}"
    "{%- set answer = content_of(message) -%}{%- set thought = '' -%}"
    "{%- if message.reasoning_content is string -%}{%- set thought = message.reasoning_content -%}"
    "{%- elif '</think>' in answer -%}"
    "{%- set thought = answer.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}"
    "{%- set answer = answer.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}"
    "{%- generation -%}"
    "{%- if loop.index0 > ns.last_user and (loop.last or thought) -%}"
    "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + answer.lstrip('\\n') -}}"
    "{%- else -%}{{- answer -}}{%- endif -%}"
    "{{- '<|im_end|>' -}}"
    "{%- endgeneration -%}"
    "{%- else -%}{{- content_of(message) + '<|im_end|>' -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif "
    "-%}"
    "{%- endif -%}";

constexpr std::string_view llama2 = LLMTRAIN_CHAT_CONTENT LLMTRAIN_CHAT_ALTERNATING
    "{%- for message in turns -%}"
    "{%- if message.role == 'user' -%}"
    "{%- set asked = content_of(message) -%}"
    "{%- if loop.first and system is defined -%}"
    "{%- set asked = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + asked -%}{%- endif -%}"
    "{{- bos_token ~ '[INST] ' ~ asked | trim ~ ' [/INST]' -}}"
    "{%- else -%}"
    "{%- generation -%}{{- ' ' ~ content_of(message) | trim ~ ' ' ~ eos_token -}}{%- endgeneration -%}"
    "{%- endif -%}"
    "{%- endfor -%}";

constexpr std::string_view llama3 = LLMTRAIN_CHAT_CONTENT
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}"
    "{%- if message.role == 'assistant' -%}"
    "{%- generation -%}{{- content_of(message) | trim + '<|eot_id|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- content_of(message) | trim + '<|eot_id|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}";

constexpr std::string_view mistral = LLMTRAIN_CHAT_CONTENT LLMTRAIN_CHAT_ALTERNATING
    "{{- bos_token -}}"
    "{%- for message in turns -%}"
    "{%- if message.role == 'user' -%}"
    "{{- '[INST] ' -}}"
    "{%- if loop.first and system is defined -%}{{- system + '\\n\\n' -}}{%- endif -%}"
    "{{- content_of(message) + '[/INST]' -}}"
    "{%- else -%}{%- generation -%}{{- ' ' + content_of(message) ~ eos_token -}}{%- endgeneration -%}{%- endif -%}"
    "{%- endfor -%}";

constexpr std::string_view alpaca = LLMTRAIN_CHAT_CONTENT LLMTRAIN_CHAT_ALTERNATING
    "{{- bos_token -}}"
    "{%- if system is defined -%}{{- system + '\\n\\n' -}}"
    "{%- else -%}{{- 'Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.\\n\\n' -}}{%- endif -%}"
    "{%- for message in turns -%}"
    "{%- if message.role == 'user' -%}{{- '### Instruction:\\n' + content_of(message) + '\\n\\n### Response:\\n' -}}"
    "{%- else -%}{%- generation -%}{{- content_of(message) ~ eos_token -}}{%- endgeneration -%}"
    "{%- if not loop.last -%}{{- '\\n\\n' -}}{%- endif -%}{%- endif -%}"
    "{%- endfor -%}";

constexpr std::string_view zephyr = LLMTRAIN_CHAT_CONTENT
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>\\n' -}}"
    "{%- if message.role == 'assistant' -%}"
    "{%- generation -%}{{- content_of(message) ~ eos_token -}}{%- endgeneration -%}"
    "{%- else -%}{{- content_of(message) ~ eos_token -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}";

constexpr std::string_view gemma = LLMTRAIN_CHAT_CONTENT LLMTRAIN_CHAT_ALTERNATING
    "{{- bos_token -}}"
    "{%- for message in turns -%}"
    "{%- if message.role == 'user' -%}"
    "{{- '<start_of_turn>user\\n' -}}"
    "{%- if loop.first and system is defined -%}{{- system + '\\n\\n' -}}{%- endif -%}"
    "{{- content_of(message) | trim + '<end_of_turn>\\n' -}}"
    "{%- else -%}"
    "{{- '<start_of_turn>model\\n' -}}"
    "{%- generation -%}{{- content_of(message) | trim + '<end_of_turn>' -}}{%- endgeneration -%}{{- '\\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}";

constexpr std::string_view phi3 = LLMTRAIN_CHAT_CONTENT
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>\\n' -}}"
    "{%- if message.role == 'assistant' -%}"
    "{%- generation -%}{{- content_of(message) + '<|end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- content_of(message) + '<|end|>' -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- else -%}{{- eos_token -}}{%- endif -%}";

constexpr std::string_view vicuna = LLMTRAIN_CHAT_CONTENT LLMTRAIN_CHAT_ALTERNATING
    "{{- bos_token -}}"
    "{%- if system is defined -%}{{- system -}}"
    "{%- else -%}{{- 'A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, "
    "detailed, and polite answers to the user\\'s questions.' -}}{%- endif -%}"
    "{{- ' ' -}}"
    "{%- for message in turns -%}"
    "{%- if message.role == 'user' -%}{{- 'USER: ' + content_of(message) + ' ASSISTANT:' -}}"
    "{%- else -%}{%- generation -%}{{- ' ' + content_of(message) ~ eos_token -}}{%- endgeneration -%}{%- endif -%}"
    "{%- endfor -%}";

constexpr std::array<NamedTemplate, 11> templates = {{{"llama2", llama2},
                                                      {"llama3", llama3},
                                                      {"chatml", chatml},
                                                      {"qwen", qwen},
                                                      {"qwen3", qwen3},
                                                      {"mistral", mistral},
                                                      {"alpaca", alpaca},
                                                      {"zephyr", zephyr},
                                                      {"gemma", gemma},
                                                      {"phi3", phi3},
                                                      {"vicuna", vicuna}}};

#undef LLMTRAIN_CHAT_CONTENT
#undef LLMTRAIN_CHAT_ALTERNATING
#undef LLMTRAIN_CHATML

}  // namespace

std::span<const NamedTemplate> named_templates() { return templates; }

const NamedTemplate* find_named_template(std::string_view name) {
  return find_entry(templates, name, &NamedTemplate::name);
}

std::string unknown_template(std::string_view name) {
  std::vector<std::string_view> names = {"auto", "none"};
  for (const NamedTemplate& named : templates) names.push_back(named.name);
  return fmt::format("{} is not a template{}; give a Jinja file or one of {}", name, did_you_mean(name, names),
                     joined(names));
}

}  // namespace llmtrain
