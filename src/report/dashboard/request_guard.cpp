#include "report/dashboard/request_guard.hpp"

#include <fmt/format.h>
#include <strings.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.hpp"

namespace llmtrain {

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != std::ssize(bytes)) throw Error("the system has no random numbers");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

bool same_token(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    const volatile unsigned char bits = static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
    difference = static_cast<unsigned char>(difference | bits);
  }
  return difference == 0;
}

bool is_loopback_host(std::string_view host) {
  const auto is_port = [](std::string_view text) {
    return text.empty() || (text.size() > 1 && text.size() <= 6 && text.front() == ':' &&
                            std::ranges::all_of(text.substr(1), [](unsigned char c) { return std::isdigit(c) != 0; }));
  };
  constexpr std::string_view local_name = "localhost";
  size_t name = 0;
  if (host.starts_with("127.")) {  // a number: a name could have any address
    name = std::min(host.find_first_not_of("0123456789."), host.size());
  } else if (host.size() >= local_name.size() && strncasecmp(host.data(), local_name.data(), local_name.size()) == 0) {
    name = local_name.size();
  } else if (host.starts_with("[::1]")) {
    name = std::string_view("[::1]").size();
  }
  return name > 0 && is_port(host.substr(name));
}

unsigned refusal_of(const RequestHead& request, const RequestRules& rules) {
  if (request.method != "GET" && request.method != "HEAD") return 405;
  if (request.has_body) return 400;
  if (rules.loopback && !is_loopback_host(request.host)) return 403;
  if (!rules.token.empty() && !same_token(request.token, rules.token)) return 403;
  return 0;
}

}  // namespace llmtrain
