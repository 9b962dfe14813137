/* The one error type. A function that can fail returns dw_status and takes a dw_error as last argument;
   the message is one line that names the file, tensor, rank or limit concerned and what to do. */
#ifndef DW_BASE_ERROR_H
#define DW_BASE_ERROR_H

/* The values are the exit statuses of the program (docs: README, "Exit status"). */
typedef enum {
    DW_OK = 0,
    DW_RUNTIME = 1,      /* run-time failure */
    DW_USAGE = 2,        /* wrong arguments */
    DW_INPUT = 3,        /* bad model, snapshot, configuration or input */
    DW_RESOURCE = 4,     /* not enough memory or disk */
    DW_RANK_LOST = 5,    /* a rank was lost or timed out */
    DW_INTERRUPTED = 130 /* stopped by a signal */
} dw_status;

typedef struct {
    dw_status status;
    int shared; /* every rank holds this error (mpi/collective.h, dw_agree) and leaves with it */
    char message[512];
} dw_error;

/* Fills err (which may be NULL) and returns status, so that `return dw_fail(err, ...)` reports and leaves. */
dw_status dw_fail(dw_error *err, dw_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the message that err holds. Returns err's status. */
dw_status dw_fail_context(dw_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns from the calling function when call fails. */
#define DW_TRY(call)                                                                                                           \
    do {                                                                                                                       \
        const dw_status dw_try_status = (call);                                                                                \
        if (dw_try_status != DW_OK) return dw_try_status;                                                                      \
    } while (0)

/* Jumps to label when call fails; status (a dw_status variable of the caller) then holds why. */
#define DW_TRY_GOTO(status, call, label)                                                                                       \
    do {                                                                                                                       \
        (status) = (call);                                                                                                     \
        if ((status) != DW_OK) goto label;                                                                                     \
    } while (0)

#endif
