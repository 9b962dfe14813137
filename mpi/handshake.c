#include "mpi/handshake.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mpi/collective.h"

void dw_card_start(dw_card *card)
{
    *card = (dw_card){0};
    dw_card_add(card, DW_RUNTIME, "the version of dewpoint", "%s", DW_VERSION);
    dw_card_add(card, DW_RUNTIME, "the protocol", "%d", DW_PROTOCOL);
}

void dw_card_add(dw_card *card, dw_status status, const char *name, const char *format, ...)
{
    dw_fact *fact = &card->fact[card->count];
    va_list args;
    if (card->count == DW_MAX_FACTS) return;
    fact->status = (int32_t)status;
    snprintf(fact->name, sizeof fact->name, "%s", name);
    va_start(args, format);
    vsnprintf(fact->value, sizeof fact->value, format, args);
    va_end(args);
    card->count++;
}

static const dw_fact *find(const dw_card *card, const char *name)
{
    for (int32_t i = 0; i < card->count && i < DW_MAX_FACTS; i++) {
        if (strncmp(card->fact[i].name, name, sizeof card->fact[i].name) == 0) return &card->fact[i];
    }
    return NULL;
}

static dw_status compare(const dw_card *card, const dw_card *of_rank_0, dw_error *err)
{
    for (int32_t i = 0; i < card->count; i++) {
        const dw_fact *mine = &card->fact[i];
        const dw_fact *other = find(of_rank_0, mine->name);
        if (other == NULL || strncmp(other->value, mine->value, sizeof mine->value) == 0) continue;
        return dw_fail(err, (dw_status)mine->status, "%s differs between ranks: %s here, %.95s on rank 0", mine->name,
                       mine->value, other->value);
    }
    return DW_OK;
}

dw_status dw_handshake(dw_transport *t, const dw_card *card, dw_status *mine, dw_error *err)
{
    dw_card of_rank_0 = *card;
    DW_TRY(dw_broadcast(t, &of_rank_0, (int64_t)sizeof of_rank_0, err));
    if (*mine == DW_OK) *mine = compare(card, &of_rank_0, err);
    return DW_OK;
}
