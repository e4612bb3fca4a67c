#include "report/dashboard/dashboard_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void DashboardConfig::visit(DeckKeys& keys) {
  keys.section("dashboard", "Show the run in the browser: llmtool serve on the node of rank 0, while the run lasts.",
               Change::nothing, training_tasks);
  keys.key("port", port, {.range = between(0, 65535), .doc = "Port of the page, 8080 for instance; 0 = off."});
  keys.key("address", address,
           {.doc = "Address of rank 0's node to listen at. With any address but the loopback (0.0.0.0 for all) the "
                   "page needs the token that the console shows."});
}

void DashboardConfig::resolve(DeckLoader& deck) const {
  deck.check(!address.empty(), {"dashboard.address"}, "is empty: give an address of the node, or remove the key");
  if (port == 0) deck.unused("dashboard.address", "no effect with port = 0");
}

}  // namespace llmtrain
