#pragma once
#include <cstdint>
#include <string>

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [dashboard]
struct DashboardConfig {
  int64_t port = 0;  ///< 0: none
  std::string address = "127.0.0.1";

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

}  // namespace llmtrain
