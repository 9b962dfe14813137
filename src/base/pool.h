/* A pool of threads for one rank. Results never depend on the number of threads: a task is a fixed piece of work, and what
   tasks share is added as integers (attention/partial.h). */
#ifndef DW_BASE_POOL_H
#define DW_BASE_POOL_H

#include <stdint.h>

#include "base/error.h"

typedef struct dw_pool dw_pool;

/* task: 0..tasks-1, each run once, in any order; thread: 0..threads-1, for scratch memory of the thread. */
typedef void dw_task(void *context, int64_t task, int thread);

/* threads >= 1 counts the calling thread. spin: idle threads poll for a while before they sleep; set it only when the
   host has a core for every thread of every rank. Free with dw_pool_destroy. */
dw_status dw_pool_create(dw_pool **out, int threads, int spin, dw_error *err);
void dw_pool_destroy(dw_pool *pool);

int dw_pool_threads(const dw_pool *pool);

/* Runs all tasks and returns when they are done. One caller at a time. */
void dw_pool_run(dw_pool *pool, int64_t tasks, dw_task *run, void *context);

/* IEEE rounding to nearest, denormals kept, exceptions masked: the state that every definition assumes. Pool threads have
   it; any other thread that computes must call this once. */
void dw_set_float_state(void);

#endif
