/* The thread pool: every task runs once, on a thread with its own index, and dw_pool_run returns after the last. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/pool.h"

enum { MAX_TASKS = 1000, MAX_THREADS = 8 };

typedef struct {
    int threads;
    atomic_int runs[MAX_TASKS];
    atomic_int in_use[MAX_THREADS]; /* tasks that run with this thread index right now */
    atomic_int wrong;
} record;

static void count_run(void *context, int64_t task, int thread)
{
    record *r = context;
    if (thread < 0 || thread >= r->threads) {
        atomic_fetch_add(&r->wrong, 1);
        return;
    }
    if (atomic_fetch_add(&r->in_use[thread], 1) != 0) atomic_fetch_add(&r->wrong, 1);
    atomic_fetch_add(&r->runs[task], 1);
    atomic_fetch_sub(&r->in_use[thread], 1);
}

Test(pool, every_task_runs_exactly_once_whatever_the_number_of_threads)
{
    static record r;
    static const int64_t counts[] = {0, 1, 2, 3, 17, MAX_TASKS};
    dw_error err;
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        for (int spin = 0; spin < 2; spin++) {
            dw_pool *pool;
            cr_assert(dw_pool_create(&pool, threads, spin, &err) == DW_OK, "%s", err.message);
            cr_assert_eq(dw_pool_threads(pool), threads);
            for (int trial = 0; trial < 200; trial++) {
                const int64_t tasks = counts[trial % 6];
                memset(&r, 0, sizeof r);
                r.threads = threads;
                dw_pool_run(pool, tasks, count_run, &r);
                for (int64_t t = 0; t < tasks; t++)
                    cr_assert_eq(atomic_load(&r.runs[t]), 1, "task %lld of %lld", (long long)t, (long long)tasks);
                cr_assert_eq(atomic_load(&r.wrong), 0, "two tasks at once on one thread index, or an index out of range");
            }
            dw_pool_destroy(pool);
        }
    }
}

Test(pool, a_failing_allocation_is_reported)
{
    dw_error err;
    for (int64_t n = 1; n <= 2; n++) {
        dw_pool *pool = (dw_pool *)&err;
        dw_memory_fail_at(n);
        cr_assert_eq(dw_pool_create(&pool, 3, 0, &err), DW_RESOURCE);
        cr_assert_null(pool);
        cr_assert(strstr(err.message, "thread pool") != NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
}
