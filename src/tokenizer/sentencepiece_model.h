/* tokenizer.model of a Hugging Face directory: SentencePiece's own file. */
#ifndef DW_TOKENIZER_SENTENCEPIECE_MODEL_H
#define DW_TOKENIZER_SENTENCEPIECE_MODEL_H

#include "tokenizer/tokenizer.h"

/* *out = NULL and DW_OK when the directory has no such file. DW_INPUT: damaged, no BPE model, a normaliser that changes text,
   tokens added in other files. */
dw_status dw_tokenizer_load_sentencepiece(dw_tokenizer **out, const dw_checkpoint *checkpoint, dw_error *err);

#endif
