/* Launches programs under mpirun, as root and with more ranks than cores too. */
#ifndef DW_TESTS_MPIRUN_H
#define DW_TESTS_MPIRUN_H

#include <stdint.h>

#include "base/error.h"

typedef struct {
    int status;         /* mpirun's exit status; 128 + number when a signal ended it */
    char *out;          /* stdout of all ranks */
    char *err;          /* stderr of all ranks and of mpirun */
    int left_processes; /* of the job, still there after mpirun ended; they are killed */
} mpirun_result;

/* Runs `mpirun -q --timeout SECONDS -n RANKS ARGV...` and waits for its end. argv ends with NULL; it may go on with other
   programs, as mpirun takes them (":", "-n", "1", ...). Fails only when mpirun can not be run. Free the result with
   mpirun_free, after a failure too. */
dw_status mpirun(mpirun_result *result, int ranks, int seconds, const char *const *argv, dw_error *err);

/* What happens to a job: as soon as `sign` stands in its stderr (NULL: anything on its stdout), rank `rank` gets `signal`. */
typedef struct {
    const char *sign;
    int rank;
    int signal;
} mpirun_fault;

/* The same with a fault and without -q, so that mpirun says what it noticed. Fails also when the job ended before the sign. */
dw_status mpirun_with_fault(mpirun_result *result, int ranks, int seconds, const char *const *argv, const mpirun_fault *fault,
                            dw_error *err);

void mpirun_free(mpirun_result *result);

/* Path of a program that was built beside the test program that is running ("programs/transport"). */
dw_status program_beside_this(char *path, int64_t capacity, const char *name, dw_error *err);

#endif
