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

struct dw_pool {
    int threads;
    int spin;
    int started; /* workers that exist: 1..threads-1 when creation failed half-way */
    worker *workers;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t idle;
    atomic_int generation; /* raised for each dw_pool_run; written under lock */
    atomic_int busy;       /* workers that have not finished the present run */
    int stop;

    dw_task *run;
    void *context;
    int64_t tasks;
    atomic_llong next;
};

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

static void take_tasks(dw_pool *pool, int thread)
{
    for (;;) {
        const int64_t task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= pool->tasks) return;
        pool->run(pool->context, task, thread);
    }
}

/* Returns 0 when the pool ends. */
static int wait_for_work(dw_pool *pool, int seen)
{
    int stop;
    for (int i = 0; pool->spin && i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) break;
        pause_a_moment();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->generation) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
    stop = pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return !stop;
}

static void *work(void *argument)
{
    const worker *self = argument;
    dw_pool *pool = self->pool;
    int seen = 0;
    dw_set_float_state();
    while (wait_for_work(pool, seen)) {
        seen++;
        take_tasks(pool, self->index);
        if (atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->idle);
            pthread_mutex_unlock(&pool->lock);
        }
    }
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
    pthread_cond_init(&pool->idle, NULL);
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
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->workers[i].handle, NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->idle);
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
    atomic_store(&pool->next, 0);
    atomic_store(&pool->busy, pool->threads - 1);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    take_tasks(pool, 0);
    for (int i = 0; pool->spin && i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->busy, memory_order_acquire) == 0) return;
        pause_a_moment();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->busy, memory_order_acquire) != 0) pthread_cond_wait(&pool->idle, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
