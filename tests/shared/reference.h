/* Where reference data lies: ../shared/reference (made from other implementations, see its README) or, in a clone without it,
   the copies in tests/reference/data. */
#ifndef DW_TESTS_REFERENCE_H
#define DW_TESTS_REFERENCE_H

#include <jansson.h>
#include <stdint.h>

/* Path of a file, for instance "attention/cases.json"; fails the running test when it is in neither place. Valid until the next
   call. */
const char *reference_path(const char *name);

/* The JSON text of a file; fails the running test when it can not be read. Free with json_decref. */
json_t *reference_json(const char *name);

/* count raw float64 numbers of a file; fails the running test when the file is shorter. Free with dw_free. */
double *reference_doubles(const char *name, int64_t count);

/* The real models; each fails the running test, saying how to get it, when it is not there. */
const char *reference_smollm2(void);
const char *reference_qwen05(void);
const char *reference_gemma3(void);
const char *reference_qwen15(void);

#endif
