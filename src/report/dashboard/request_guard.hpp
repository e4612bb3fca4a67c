#pragma once
// Checks of the requests that a dashboard gets.

#include <string>
#include <string_view>

namespace llmtrain {

/// 32 hexadecimal digits from the system's source of random numbers.
std::string random_token();

/// Compares in a time that depends on the lengths alone.
bool same_token(std::string_view one, std::string_view other);

/// True if a request with this header Host can only come from a page of this server's: its name is that of the loopback
/// device. Other names are a web site's that resolves to this machine (DNS rebinding). The port may be a tunnel's.
bool is_loopback_host(std::string_view host);

struct RequestRules {
  bool loopback = true;  ///< the server listens on the loopback device alone
  std::string token;     ///< "": none is needed
};

struct RequestHead {
  std::string_view method, host, token;
  bool has_body = false;
};

/// Status of a refusal, or 0.
unsigned refusal_of(const RequestHead& request, const RequestRules& rules);

}  // namespace llmtrain
