#pragma once
// Enumerations with names in a deck: an explicit list of names beside each, in the order of its values (0, 1, 2 ...).

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace llmtrain {

/// A specialisation stands beside the enumeration: template <> inline constexpr auto enum_names<E> = name_list("a",
/// "b");
template <class E>
inline constexpr std::array<std::string_view, 0> enum_names{};

template <class... Names>
constexpr std::array<std::string_view, sizeof...(Names)> name_list(Names... names) {
  return {std::string_view(names)...};
}

template <class E>
concept NamedEnum = std::is_enum_v<E> &&(!enum_names<E>.empty());

template <NamedEnum E>
constexpr std::string_view name_of(E value) {
  return enum_names<E>[static_cast<size_t>(value)];
}

}  // namespace llmtrain
