#include "base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { DW_ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

static atomic_llong fail_countdown; /* 0: off */
static atomic_llong allocation_count;

void dw_memory_fail_at(int64_t n)
{
    atomic_store(&fail_countdown, n);
}

int64_t dw_memory_allocations(void)
{
    return atomic_load(&allocation_count);
}

static int must_fail(void)
{
    atomic_fetch_add(&allocation_count, 1);
    if (atomic_load(&fail_countdown) == 0) return 0;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

/* Large arrays lie in huge pages where the system has them: a scan of a KV cache is 6 to 15 % faster. */
static void *allocate(int64_t bytes)
{
    void *memory;
    if (bytes < 4 * (int64_t)HUGE_PAGE) return aligned_alloc(DW_ALIGNMENT, (size_t)bytes);
    memory = aligned_alloc(HUGE_PAGE, (size_t)(bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (memory != NULL) madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    return memory;
}

dw_status dw_alloc_bytes(void **out, int64_t count, int64_t size, const char *what, dw_error *err)
{
    int64_t bytes;
    int64_t padded;
    *out = NULL;
    if (count < 0 || size < 0 || __builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX - 2 * (int64_t)HUGE_PAGE) {
        dw_fail(err, DW_RESOURCE, "%s: %lld elements of %lld bytes is more than this machine can address", what,
                (long long)count, (long long)size);
        return DW_RESOURCE;
    }
    padded = bytes / DW_ALIGNMENT * DW_ALIGNMENT + DW_ALIGNMENT;
    if (!must_fail()) *out = allocate(padded);
    if (*out == NULL) {
        dw_fail(err, DW_RESOURCE, "not enough memory for %s (%lld bytes)", what, (long long)bytes);
        return DW_RESOURCE;
    }
    memset(*out, 0, (size_t)padded);
    return DW_OK;
}

dw_status dw_grow_bytes(void **array, int64_t *capacity, int64_t needed, int64_t size, const char *what, dw_error *err)
{
    int64_t larger = *capacity < 16 ? 16 : *capacity;
    void *fresh;
    if (needed <= *capacity) return DW_OK;
    while (larger < needed) {
        if (__builtin_add_overflow(larger, larger / 2, &larger)) larger = needed;
    }
    DW_TRY(dw_alloc_bytes(&fresh, larger, size, what, err));
    if (*array != NULL) memcpy(fresh, *array, (size_t)(*capacity * size));
    dw_free(*array);
    *array = fresh;
    *capacity = larger;
    return DW_OK;
}

void dw_free(void *pointer)
{
    free(pointer);
}

/* The number behind key in a file of "key: value kB" lines (key "": of plain numbers); -1 if absent. */
static int64_t read_number(const char *path, const char *key)
{
    const size_t length = strlen(key);
    char line[256];
    int64_t value = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (value < 0 && fgets(line, sizeof line, file) != NULL) {
        char *end;
        if (strncmp(line, key, length) != 0) continue;
        value = strtoll(line + length, &end, 10);
        if (end == line + length) value = -1;
    }
    fclose(file);
    return value;
}

int64_t dw_memory_available(void)
{
    const int64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    const int64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    const int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    int64_t available = kib < 0 ? INT64_MAX : kib * 1024;
    if (limit >= 0 && used >= 0 && limit - used < available) available = limit > used ? limit - used : 0;
    return available;
}

int64_t dw_memory_peak(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (int64_t)usage.ru_maxrss * 1024;
}
