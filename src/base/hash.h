/* A fast hash that tells files and results apart. It is no protection against somebody who wants two of them to look alike. */
#ifndef DW_BASE_HASH_H
#define DW_BASE_HASH_H

#include <stdint.h>
#include <string.h>

/* hash: 0, or the hash of what stands in front. Eight bytes a step, one multiplication each; the last step takes the remaining
   bytes and the length. */
static inline uint64_t dw_hash(uint64_t hash, const void *data, int64_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t word = 0;
    int64_t left = bytes;
    for (; left >= (int64_t)sizeof word; left -= (int64_t)sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    word = 0;
    if (left > 0) memcpy(&word, p, (size_t)left);
    hash = (hash ^ word) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 29 ^ (uint64_t)bytes) * 0x94D049BB133111EBu;
    return hash ^ hash >> 32;
}

/* The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): every bit of z reaches every bit. Its
   generator mixes a state that grows by DW_GOLDEN. */
#define DW_GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t dw_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
