/* A small GGUF with every kind of value and four tensors, and a reader that touches all of an opened file. */
#ifndef DW_TESTS_GGUF_SMALL_H
#define DW_TESTS_GGUF_SMALL_H

#include "model/gguf.h"
#include "tests/shared/gguf_writer.h"

/* alignment 0: no key general.alignment (data aligned to 32). padding: bytes of a string in front of everything else. */
gguf_writer *gguf_small(uint32_t version, uint32_t alignment, int64_t padding);

/* Calls every accessor on every key and tensor and checks that whatever they return lies inside the file. */
void gguf_touch_all(const dw_gguf *file);

#endif
