#include "cli/machine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/report.h"
#include "kernels/roof.h"
#include "mpi/collective.h"

#define MIB ((int64_t)1 << 20)

/* ---- its name ---- */

static void cpu_name(char *name, size_t capacity)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, capacity, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, capacity, "%s", colon[1] == ' ' ? colon + 2 : colon + 1);
        break;
    }
    if (file != NULL) fclose(file);
}

json_t *dw_machine_json(const dw_rank *rank)
{
    char host[65], cpu[128];
    dw_host_name(host, (int64_t)sizeof host);
    cpu_name(cpu, sizeof cpu);
    return json_pack("{s:o, s:o, s:s}", "host", dw_json_text(host, (int64_t)strlen(host)), "cpu",
                     dw_json_text(cpu, (int64_t)strlen(cpu)), "kernels", rank->kernels->name);
}

/* ---- cold memory ---- */

/* Twice the last cache, but no less than 128 MiB and no more than 1 GiB: an emulated CPU may report none, or a whole host's. */
static int64_t cold_bytes(void)
{
    const int64_t twice = 2 * (int64_t)sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (twice < 128 * MIB) return 128 * MIB;
    return twice < 1024 * MIB ? twice : 1024 * MIB;
}

/* Bytes 0x10..0x2F: as halves and floats of any kind numbers between 2^-95 and 1, as scales small positive ones. */
static void fill_task(void *context, int64_t task, int thread)
{
    const dw_cold_memory *memory = context;
    uint64_t *words = (uint64_t *)(void *)(memory->data + task * MIB);
    uint64_t random = (uint64_t)task;
    (void)thread;
    for (int64_t i = 0; i < MIB / 8; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        words[i] = 0x1010101010101010u + (random >> 3 & 0x1F1F1F1F1F1F1F1Fu);
    }
}

dw_status dw_cold_memory_create(dw_cold_memory *memory, const dw_rank *rank, dw_error *err)
{
    const int64_t slice = cold_bytes() / DW_COLD_SLICES / rank->ranks_on_host / MIB * MIB;
    *memory = (dw_cold_memory){.slice_bytes = slice > MIB ? slice : MIB};
    DW_TRY(DW_ALLOC(&memory->data, DW_COLD_SLICES * memory->slice_bytes, "memory to read", err));
    dw_pool_run(rank->pool, DW_COLD_SLICES * memory->slice_bytes / MIB, fill_task, memory);
    return DW_OK;
}

void dw_cold_memory_destroy(dw_cold_memory *memory)
{
    dw_free(memory->data);
    memory->data = NULL;
}

const uint8_t *dw_cold_memory_next(dw_cold_memory *memory)
{
    const uint8_t *slice = memory->data + memory->next * memory->slice_bytes;
    memory->next = (memory->next + 1) % DW_COLD_SLICES;
    return slice;
}

/* ---- how fast it is read ---- */

enum { PIECE = 1 << 17, PASSES = 5 * DW_COLD_SLICES };

typedef struct {
    const dw_roof *roof;
    const uint8_t *slice;
} reading;

static void read_task(void *context, int64_t task, int thread)
{
    const reading *r = context;
    (void)thread;
    (void)r->roof->read((const float *)(const void *)(r->slice + task * PIECE), PIECE / (int64_t)sizeof(float));
}

/* Bytes that all ranks read in one pass, on rank 0. */
static dw_status bytes_of_all(dw_transport *t, int64_t mine, double *sum, dw_error *err)
{
    int64_t *bytes;
    dw_status status;
    *sum = 0;
    DW_TRY(DW_ALLOC(&bytes, t->size, "bytes of the ranks", err));
    status = dw_gather(t, &mine, (int64_t)sizeof mine, bytes, err);
    for (int r = 0; r < t->size; r++) *sum += (double)bytes[r];
    dw_free(bytes);
    return status;
}

dw_status dw_read_bandwidth(const dw_rank *rank, dw_cold_memory *memory, double *bytes_per_second, dw_error *err)
{
    reading r = {.roof = dw_roof_named(rank->kernels->name)};
    double fastest = 0;
    double bytes;
    DW_TRY(bytes_of_all(rank->transport, memory->slice_bytes, &bytes, err));
    DW_TRY(dw_agree(rank->transport, DW_OK, err));
    for (int i = 0; i < PASSES; i++) {
        const double start = dw_now();
        double seconds;
        r.slice = dw_cold_memory_next(memory);
        dw_pool_run(rank->pool, memory->slice_bytes / PIECE, read_task, &r);
        DW_TRY(dw_agree(rank->transport, DW_OK, err)); /* the slowest rank ends the pass */
        seconds = dw_now() - start;
        if (fastest <= 0 || seconds < fastest) fastest = seconds;
    }
    *bytes_per_second = bytes / fastest;
    return DW_OK;
}
