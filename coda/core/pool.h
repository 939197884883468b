// coda/core/pool.h: the process's one pool of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace coda {

// Calls body(task, worker) once for each task of 0 … tasks - 1, on at most `threads` threads (0:
// flags::threads()), the caller among them, and returns when all calls have. Which worker gets a
// task, and when, is open; `worker` is in [0, threads) and no two calls run under one number at a
// time, so it may index scratch memory.
//
// Where tasks throw, no new ones start, and the exception of the lowest task is rethrown here.
// A call from inside a task, and one that comes while another thread's call has the pool, runs
// on the calling thread alone, as worker 0: scratch belongs to the call.
// The first call starts the threads; a call costs a few microseconds.
void parallel_for(std::int64_t tasks, int threads,
                  const std::function<void(std::int64_t task, int worker)>& body);

}  // namespace coda
