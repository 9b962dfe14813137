/* Checked allocation: 64-bit sizes, overflow-checked products, 64-byte alignment (one cache line, one ZMM register). */
#ifndef DW_BASE_MEMORY_H
#define DW_BASE_MEMORY_H

#include <stdint.h>

#include "base/error.h"

/* *out = count * size zeroed bytes, aligned to 64; a zero product gives a valid pointer too. what names the thing in the
   error message (DW_RESOURCE). Free with dw_free. */
dw_status dw_alloc_bytes(void **out, int64_t count, int64_t size, const char *what, dw_error *err);

/* DW_ALLOC(&array, n, "name", err) for a typed pointer. (clang-tidy suspects the size of an array of pointers.) */
/* clang-format off */
#define DW_ALLOC(pointer, count, what, err) \
    dw_alloc_bytes((void **)(pointer), (count), (int64_t)sizeof **(pointer), (what), (err)) /* NOLINT(bugprone-sizeof-expression) */
/* clang-format on */

/* Grows *array (count_of_elements *capacity) so that it holds at least needed elements, keeping what is there; the new
   part is zeroed. *array may be NULL with *capacity 0. On failure nothing changes. */
dw_status dw_grow_bytes(void **array, int64_t *capacity, int64_t needed, int64_t size, const char *what, dw_error *err);
#define DW_GROW(array, capacity, needed, what, err)                                                                            \
    dw_grow_bytes((void **)(array), (capacity), (needed), (int64_t)sizeof **(array), (what), (err))

void dw_free(void *pointer);

/* Bytes this host can still give to new allocations (MemAvailable, bounded by the cgroup's limit); INT64_MAX if unknown. */
int64_t dw_memory_available(void);

/* Largest resident set of this process so far, in bytes. */
int64_t dw_memory_peak(void);

/* For tests: the n-th allocation from now on (1 = the next) fails, all others work; 0 turns it off. Process-wide. */
void dw_memory_fail_at(int64_t n);

/* For tests: allocations made so far by this process. */
int64_t dw_memory_allocations(void);

#endif
