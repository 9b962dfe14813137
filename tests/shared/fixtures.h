/* Small models of every family as GGUF files for tests: random ones from a seed, and conversions of the reference checkpoints.
   For Criterion tests: anything that goes wrong fails the test. */
#ifndef DW_TESTS_FIXTURES_H
#define DW_TESTS_FIXTURES_H

#include <stdint.h>

#include "tests/shared/gguf_writer.h"

/* Storage of the matrices (norms are always F32). FIXTURE_MIXED is SmolLM2's way: embedding Q8_0, the rest Q4_1, and no
   output.weight, so that the head is the embedding. The quantised ones need hidden, heads * head_dim and feed_forward to
   be multiples of 32. */
typedef enum { FIXTURE_F32, FIXTURE_Q8_0, FIXTURE_Q4_1, FIXTURE_MIXED } fixture_type;

/* A zero takes the default in brackets, so that a test names only what it is about. */
typedef struct {
    const char *family;   /* ["llama"]; "qwen2" adds biases to Q, K and V */
    int64_t layers;       /* [2] */
    int64_t hidden;       /* [64] */
    int64_t heads;        /* [4] */
    int64_t kv_heads;     /* [2] */
    int64_t head_dim;     /* [16] */
    int64_t feed_forward; /* [96] */
    int64_t vocabulary;   /* [320]; with a tokenizer 300..4096 */
    int64_t context;      /* [4096] */
    double rope_base;     /* [10000] */
    uint64_t seed;        /* [1] */
    fixture_type type;    /* [F32] */
    int equal_scores;     /* all K projections (and biases) are zero, so that every score is 0 */
    int tokenizer;        /* with fixture_tokenizer */
    const char *without;  /* [NULL] name of a tensor that is left out */
} fixture_spec;

/* Writes the model. Hidden states, values and layer outputs are O(1), scores have a standard deviation of about 3, logits
   of about 3: attention is sharp and the best logits lie apart. */
void fixture_model(const char *path, const fixture_spec *spec);

/* The same model not yet built, so that a test can add to it or damage it before gguf_write. The caller frees it. */
gguf_writer *fixture_writer(const fixture_spec *spec);

/* Adds a byte-level BPE of 300..4096 tokens: ids 0..2 <|endoftext|> <|im_start|> <|im_end|>, 256 bytes, a few merges, unused
   tokens up to vocabulary. No BOS is added to prompts; the end of a turn is id 2, as in SmolLM2. */
void fixture_tokenizer(gguf_writer *writer, int64_t vocabulary);

/* Converts a Hugging Face directory to GGUF: matrices keep their type, norms and biases become F32. Of llama and mistral the rows
   of q_proj and k_proj go from half-split to interleaved pairs; those of others stay. Fails the test where GGUF has no words for
   the model (dynamic RoPE scaling, windows that follow no pattern, a scale of the queries). */
void fixture_from_safetensors(const char *path, const char *directory);

/* Path of a file `name` in a directory of this test process, which is removed when the process ends. Valid until then. */
const char *fixture_path(const char *name);

/* The same, and makes it a directory. */
const char *fixture_directory(const char *name);

/* The random numbers of all fixtures (reference/README.md): element i of stream s, uniform in [-amplitude, amplitude). */
float fixture_random(uint64_t s, int64_t i, double amplitude);

/* Reads a whole file; *data (dw_free) holds *bytes and a terminating zero. A missing file fails the test, by name. */
void read_file(const char *path, uint8_t **data, int64_t *bytes);

/* Fails the test when memory has been lost. Knows it only in a build with the address sanitizer; elsewhere it does nothing. */
void check_no_leak(void);

#endif
