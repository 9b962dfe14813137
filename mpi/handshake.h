/* The first thing that ranks do together: they compare what they are. Ranks that run another program, compute by another
   definition, hold another model or were given other options would not fail, they would give wrong results; so they do not
   start. */
#ifndef DW_MPI_HANDSHAKE_H
#define DW_MPI_HANDSHAKE_H

#include "mpi/transport.h"

enum {
    DW_PROTOCOL = 2, /* raised whenever ranks of two versions would not understand each other's messages */
    DW_MAX_FACTS = 24
};

/* Something that must be equal on all ranks. Ranks of two versions meet here, so the layout of a card never changes, nor that
   of dw_agree's messages. */
typedef struct {
    int32_t status; /* a dw_status: what it is if it is not equal */
    char name[28];  /* for the message: "--attention", "the weights of the model" */
    char value[96]; /* as the message shows it; longer ones are cut */
} dw_fact;

typedef struct {
    int32_t count;
    dw_fact fact[DW_MAX_FACTS];
} dw_card;

/* Local. A card with the version of the program and the protocol, to which the caller adds, in order of importance: the first
   fact that differs is reported. No more than DW_MAX_FACTS are kept. */
void dw_card_start(dw_card *card);
void dw_card_add(dw_card *card, dw_status status, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Collective, one broadcast. *mine: how this rank's own preparations went, err holding the message if not well. If well, it
   becomes the status of the first fact of this rank for which rank 0 has another value, with a message that shows both; facts
   that rank 0 does not state are passed over. The ranks do not agree on it yet (dw_agree). Fails only when ranks can not
   talk. */
dw_status dw_handshake(dw_transport *t, const dw_card *card, dw_status *mine, dw_error *err);

#endif
