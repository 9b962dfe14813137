/* Runs the program under test: the file that the environment variable DEWPOINT names, else ./dewpoint. For Criterion tests: a
   program that can not be run or does not end within two minutes fails the test. */
#ifndef DW_TESTS_DEWPOINT_H
#define DW_TESTS_DEWPOINT_H

#include <jansson.h>

typedef struct {
    int status; /* exit status; 128 + number when a signal ended it */
    char *out;  /* stdout, stderr; zero-terminated */
    char *err;
} dewpoint_result;

/* Path of the program; one that is missing fails the test. */
const char *dewpoint_program(void);

/* ranks: 0 without mpirun, else under mpirun. input: text of stdin (without mpirun), NULL: none. arguments end with NULL. */
dewpoint_result dewpoint_run(int ranks, const char *input, const char *const *arguments);

/* Without mpirun; sends the signal as soon as the program has written something to `descriptor` (1 or 2). */
dewpoint_result dewpoint_signalled(int signal, int descriptor, const char *const *arguments);

void dewpoint_free(dewpoint_result *result);

/* dewpoint_run without mpirun that must end with status 0; the object on stdout (json_decref). */
json_t *dewpoint_json(const char *const *arguments);

#define DEWPOINT(...) dewpoint_run(0, NULL, (const char *const[]){__VA_ARGS__, NULL})
#define DEWPOINT_JSON(...) dewpoint_json((const char *const[]){__VA_ARGS__, NULL})

#endif
