#pragma once
// Chat templates for model folders without one, by the names that other programs use.

#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

struct NamedTemplate {
  std::string_view name;
  std::string source;  ///< Jinja; generation blocks mark what the assistant generates, with its stop token
};

/// Those of src/text/chat/templates.
const std::vector<NamedTemplate>& named_templates();
const NamedTemplate* find_named_template(std::string_view name);  ///< null if there is none

/// Says that chat.template cannot be this name, and what it can be.
std::string unknown_template(std::string_view name);

}  // namespace llmtrain
