/* What tells two models apart in milliseconds, without reading all of them. */
#ifndef DW_MODEL_FINGERPRINT_H
#define DW_MODEL_FINGERPRINT_H

#include "model/checkpoint.h"

typedef struct {
    uint64_t
        header; /* hash of everything in front of the tensors: metadata, names, shapes, types, places; and of config.json */
    uint64_t weights; /* hash of some pieces of every tensor: another training or conversion shows, a damaged byte may not */
} dw_fingerprint;

/* Local. Independent of the names of files. */
dw_fingerprint dw_fingerprint_of(const dw_checkpoint *checkpoint);

#endif
