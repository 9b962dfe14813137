#include "tokenizer/tokenizer.h"

dw_status dw_tokenizer_load(dw_tokenizer **out, const dw_checkpoint *checkpoint, dw_error *err)
{
    if (checkpoint->gguf != NULL) return dw_tokenizer_load_gguf(out, checkpoint->gguf, err);
    return dw_tokenizer_load_json(out, checkpoint, err);
}
