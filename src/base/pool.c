#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/memory.h"

enum { SPIN_ROUNDS = 4000 };

typedef struct {
    dw_pool *pool;
    pthread_t handle;
    int index;
} worker;

/* A run is over when all its tasks are done, not when all workers have looked at it: a worker that the system has not scheduled
   yet holds nobody up. `ticket` is (run number << TASK_BITS) | tasks not yet taken. A thread takes a task by lowering it with a
   compare-and-swap, which succeeds only while that very run has tasks left; the run can not end before the thread has done its
   task, so run, context and tasks stay valid for it. */
struct dw_pool {
    int threads;
    int spin;
    int started; /* workers that exist: 1..threads-1 when creation failed half-way */
    worker *workers;

    pthread_mutex_t lock; /* for the two conditions and stop */
    pthread_cond_t wake;
    pthread_cond_t done;
    int stop;

    dw_task *run;
    void *context;
    int64_t tasks;
    _Atomic uint64_t ticket;
    atomic_llong pending; /* tasks of the present run that are not done */
};

enum { TASK_BITS = 40 };
#define TASK_MASK (((uint64_t)1 << TASK_BITS) - 1)

void dw_set_float_state(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0x1F80); /* all exceptions masked, round to nearest, no FTZ, no DAZ */
#endif
}

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/* Takes and runs tasks until none is left to take. */
static void take_tasks(dw_pool *pool, int thread)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while ((ticket & TASK_MASK) != 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue;
        }
        pool->run(pool->context, pool->tasks - (int64_t)(ticket & TASK_MASK), thread);
        if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == 1 && thread != 0) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

static int has_tasks(dw_pool *pool)
{
    return (atomic_load_explicit(&pool->ticket, memory_order_acquire) & TASK_MASK) != 0;
}

/* Returns 0 when the pool ends. */
static int wait_for_work(dw_pool *pool)
{
    int stop;
    for (int i = 0; pool->spin && i < SPIN_ROUNDS; i++) {
        if (has_tasks(pool)) return 1;
        pause_a_moment();
    }
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop && !has_tasks(pool)) pthread_cond_wait(&pool->wake, &pool->lock);
    stop = pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return !stop;
}

static void *work(void *argument)
{
    const worker *self = argument;
    dw_set_float_state();
    while (wait_for_work(self->pool)) take_tasks(self->pool, self->index);
    return NULL;
}

dw_status dw_pool_create(dw_pool **out, int threads, int spin, dw_error *err)
{
    dw_pool *pool;
    *out = NULL;
    DW_TRY(DW_ALLOC(&pool, 1, "thread pool", err));
    pool->threads = threads;
    pool->spin = spin;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (DW_ALLOC(&pool->workers, threads, "thread pool", err) != DW_OK) {
        dw_pool_destroy(pool);
        return DW_RESOURCE;
    }
    for (int i = 1; i < threads; i++) {
        pool->workers[i] = (worker){.pool = pool, .index = i};
        if (pthread_create(&pool->workers[i].handle, NULL, work, &pool->workers[i]) != 0) {
            dw_pool_destroy(pool);
            return dw_fail(err, DW_RESOURCE, "can not start thread %d of %d; use a smaller --threads", i + 1, threads);
        }
        pool->started++;
    }
    *out = pool;
    return DW_OK;
}

void dw_pool_destroy(dw_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->workers[i].handle, NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    dw_free(pool->workers);
    dw_free(pool);
}

int dw_pool_threads(const dw_pool *pool)
{
    return pool->threads;
}

void dw_pool_run(dw_pool *pool, int64_t tasks, dw_task *run, void *context)
{
    if (pool->threads == 1 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; task++) run(context, task, 0);
        return;
    }
    pool->run = run;
    pool->context = context;
    pool->tasks = tasks;
    atomic_store_explicit(&pool->pending, tasks, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    const uint64_t number = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> TASK_BITS) + 1;
    atomic_store_explicit(&pool->ticket, number << TASK_BITS | (uint64_t)tasks, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    take_tasks(pool, 0);
    for (int i = 0; pool->spin && i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->pending, memory_order_acquire) == 0) return;
        pause_a_moment();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->pending, memory_order_acquire) != 0) pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
