/* Unicode's normalisation form C: characters composed where there is a composed form, marks in canonical order. Of which
   version, utf8proc says (2.8: Unicode 15). The tables in Hugging Face's tokenizers are older: about a hundred recent marks are
   not ordered there, and the pair U+11935 U+11930 is not composed. */
#ifndef DW_TOKENIZER_NFC_H
#define DW_TOKENIZER_NFC_H

#include <stdint.h>

#include "base/error.h"

/* text: length bytes of valid UTF-8, may hold U+0000. *composed (dw_free) is its form C, *composed_length bytes; NULL when
   text has that form already. Cost is linear in length, whatever the text. */
dw_status dw_nfc(const char *text, int64_t length, char **composed, int64_t *composed_length, dw_error *err);

#endif
