/* The definition of the operators as a number, and the admission of kernels that claim to follow it. */
#ifndef DW_KERNELS_DEFINITION_H
#define DW_KERNELS_DEFINITION_H

#include "base/error.h"
#include "kernels/kernels.h"

/* Runs every operator of the definition on pseudo-random numbers in small shapes, fixed for all time, and every slot of
   `kernels` on the same; takes 3 ms. *hash: of all bits that came out, so that two programs with another definition, or with
   compilers that read it differently, have another hash; the same on every instruction set. Local.
   DW_RUNTIME when a slot gives other bits than the definition on this machine; names slot and table. */
dw_status dw_definition_check(const dw_kernels *kernels, uint64_t *hash, dw_error *err);

#endif
