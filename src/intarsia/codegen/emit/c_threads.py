# SPDX-License-Identifier: Apache-2.0
"""Threads of a program in C: what shares the turns of a kernel's parallel loop.

POSIX threads, started by the first run that has work for them. A chunk of turns is claimed at a
time; which thread has it changes no result. A call that comes while the threads are at work for
another one runs on its own thread alone.
"""

from __future__ import annotations


def pool_source(threads: int) -> str:
    """Return the definition of `parallel`, which runs a kernel on threads.

    Args:
        threads: The caller's included; at least 2.
    """
    return _POOL.replace("WORKERS", str(threads - 1))


_POOL = """\
#include <pthread.h>
#include <signal.h>

typedef void Kernel(const uint64_t *arguments, int64_t begin, int64_t end);

static struct {
    pthread_mutex_t lock;
    pthread_cond_t has_work, is_done;
    Kernel *kernel;
    const uint64_t *arguments;
    int64_t extent, chunks, next, unfinished;
    uint64_t jobs;
    int is_started, is_busy;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .has_work = PTHREAD_COND_INITIALIZER,
          .is_done = PTHREAD_COND_INITIALIZER};

/* Runs chunks until all are claimed. The lock is held before and after. */
static void run_chunks(void)
{
    while (pool.next < pool.chunks) {
        Kernel *kernel = pool.kernel;
        const uint64_t *arguments = pool.arguments;
        int64_t chunk = pool.next++;
        int64_t begin = pool.extent * chunk / pool.chunks;
        int64_t end = pool.extent * (chunk + 1) / pool.chunks;
        pthread_mutex_unlock(&pool.lock);
        kernel(arguments, begin, end);
        pthread_mutex_lock(&pool.lock);
        if (--pool.unfinished == 0)
            pthread_cond_signal(&pool.is_done);
    }
}

static void *serve(void *nothing)
{
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.jobs == seen)
            pthread_cond_wait(&pool.has_work, &pool.lock);
        seen = pool.jobs;
        run_chunks();
    }
    return nothing;
}

/* Fewer threads than wanted are enough: the caller runs what nobody claims. */
static void start_threads(void)
{
    sigset_t all, before; /* signals are for the threads of the caller */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < WORKERS; ++i) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL) != 0)
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool.is_started = 1;
}

static void parallel(Kernel *kernel, const uint64_t *arguments, int64_t extent, int64_t chunks)
{
    chunks = chunks < extent ? chunks : extent;
    pthread_mutex_lock(&pool.lock);
    if (chunks < 2 || pool.is_busy) {
        pthread_mutex_unlock(&pool.lock);
        kernel(arguments, 0, extent);
        return;
    }
    if (!pool.is_started)
        start_threads();
    pool.is_busy = 1;
    pool.kernel = kernel;
    pool.arguments = arguments;
    pool.extent = extent;
    pool.chunks = pool.unfinished = chunks;
    pool.next = 0;
    ++pool.jobs;
    pthread_cond_broadcast(&pool.has_work);
    run_chunks();
    while (pool.unfinished != 0)
        pthread_cond_wait(&pool.is_done, &pool.lock);
    pool.is_busy = 0;
    pthread_mutex_unlock(&pool.lock);
}
"""
