/* What tells two model files apart in milliseconds, without reading all of them. */
#ifndef DW_MODEL_FINGERPRINT_H
#define DW_MODEL_FINGERPRINT_H

#include "model/gguf.h"

typedef struct {
    uint64_t header; /* hash of everything in front of the first tensor: metadata, names, shapes, types, places */
    uint64_t
        weights; /* hash of some pieces of every tensor: another training or conversion shows, a single damaged byte may not */
} dw_fingerprint;

/* Local. Independent of the file's name. */
dw_fingerprint dw_fingerprint_of(const dw_gguf *file);

#endif
