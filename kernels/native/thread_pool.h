// Threads that run the parts of one op and meet at its end.
// They are needed hundreds of times in a step, microseconds apart, so they spin for a moment before
// they sleep; for longer they must not, since the machine has other services to run.
#pragma once

#include <functional>

// Calls part(0) … part(num_parts - 1), each once, in any order on any thread; returns after the last.
void run_parts(int num_parts, const std::function<void(int)> &part);

int num_threads();
