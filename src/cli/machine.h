/* The machine under a bench: its name, and memory that its caches do not hold. */
#ifndef DW_CLI_MACHINE_H
#define DW_CLI_MACHINE_H

#include <jansson.h>

#include "cli/command.h"

/* {"host", "cpu", "kernels"}. NULL without memory. */
json_t *dw_machine_json(const dw_rank *rank);

/* Memory at least twice as large as the last cache, cut into slices: a slice that was read before the other ones has left the
   caches. Ranks of a host share that size. */
enum { DW_COLD_SLICES = 8 };
typedef struct {
    uint8_t *data;
    int64_t slice_bytes; /* a multiple of 1 MiB */
    int64_t next;
} dw_cold_memory;

/* Local. Its bytes, whatever type they are read as, are finite numbers far from zero and infinity. */
dw_status dw_cold_memory_create(dw_cold_memory *memory, const dw_rank *rank, dw_error *err);
void dw_cold_memory_destroy(dw_cold_memory *memory);

/* The slice that has been out of use for longest. */
const uint8_t *dw_cold_memory_next(dw_cold_memory *memory);

/* Collective: all ranks sum up cold memory at the same time with all their threads. On rank 0, the bytes a second of all of
   them together, in the fastest of several passes. */
dw_status dw_read_bandwidth(const dw_rank *rank, dw_cold_memory *memory, double *bytes_per_second, dw_error *err);

#endif
