#pragma once
// The wish of somebody outside that this process stops, as long loops ask for it between two pieces of work.

namespace llmtrain {

/// `signal` that asked for it. For handlers of signals.
void request_stop(int signal);
/// The signal that came, or 0.
int requested_stop();

}  // namespace llmtrain
