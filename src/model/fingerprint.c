#include "model/fingerprint.h"

#include "base/hash.h"
#include "model/gguf_directory.h"

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

dw_fingerprint dw_fingerprint_of(const dw_gguf *file)
{
    const uint8_t *first = file->map + file->bytes;
    dw_fingerprint print = {0};
    for (int64_t i = 0; i < file->tensor_count; i++) {
        if (file->tensors[i].data < first) first = file->tensors[i].data;
        print.weights = hash_pieces(print.weights, file->tensors[i].data, dw_gguf_tensor_at(file, i).bytes);
    }
    print.header = dw_hash(0, file->map, first - file->map);
    return print;
}
