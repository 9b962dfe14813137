#include "model/fingerprint.h"

#include "base/hash.h"

/* Of each tensor: so many pieces of a cache line at equal distances, from its first bytes to its last. */
enum { PIECES = 8, PIECE_BYTES = 64 };

static uint64_t hash_pieces(uint64_t hash, const uint8_t *data, int64_t bytes)
{
    if (bytes <= (int64_t)PIECES * PIECE_BYTES) return dw_hash(hash, data, bytes);
    for (int64_t i = 0; i < PIECES - 1; i++) {
        hash = dw_hash(hash, data + (bytes - PIECE_BYTES) / (PIECES - 1) * i, PIECE_BYTES);
    }
    return dw_hash(hash, data + bytes - PIECE_BYTES, PIECE_BYTES);
}

dw_fingerprint dw_fingerprint_of(const dw_checkpoint *checkpoint)
{
    const dw_tensors *tensors = checkpoint->tensors;
    dw_fingerprint print = {.header = checkpoint->config_hash};
    /* Files are added up, tensors are in the order of their names: what files are called makes no difference. */
    for (int64_t i = 0; i < checkpoint->file_count; i++) {
        print.header += dw_hash(0, checkpoint->files[i].data, checkpoint->files[i].header_bytes);
    }
    for (int64_t i = 0; i < tensors->count; i++) {
        print.weights = hash_pieces(print.weights, tensors->list[i].data, tensors->list[i].bytes);
    }
    return print;
}
