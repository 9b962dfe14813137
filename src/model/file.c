#include "model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/integers.h"
#include "base/memory.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian and their data are used in place"
#endif

void dw_refuse(const char *path, dw_error *err, const char *format, ...)
{
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    dw_fail(err, DW_INPUT, "%s", message);
    dw_fail_context(err, "%s", path);
}

static dw_status map_all(dw_file *file, int descriptor, int64_t bytes, dw_error *err)
{
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED) {
        return dw_fail(err, DW_RESOURCE, "%s: can not map %lld bytes: %s", file->path, (long long)bytes, strerror(errno));
    }
    file->data = map;
    file->bytes = bytes;
    return DW_OK;
}

static dw_status read_all(dw_file *file, int descriptor, int64_t bytes, dw_error *err)
{
    const int64_t most = (int64_t)64 << 20; /* any size below the 2 GiB that the system reads at once */
    uint8_t *data;
    DW_TRY(DW_ALLOC(&data, bytes, file->path, err));
    file->data = data;
    file->bytes = bytes;
    for (int64_t done = 0; done < bytes;) {
        const ssize_t got = pread(descriptor, data + done, (size_t)dw_smaller(bytes - done, most), done);
        if (got < 0 && errno != EINTR) return DW_REFUSE(file->path, err, "can not be read: %s", strerror(errno));
        if (got == 0) {
            return DW_REFUSE(file->path, err, "ends after %lld of its %lld bytes", (long long)done, (long long)bytes);
        }
        if (got > 0) done += got;
    }
    return DW_OK;
}

static dw_status load(dw_file *file, int descriptor, const char *expected, dw_error *err)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0) return DW_REFUSE(file->path, err, "%s", strerror(errno));
    if (S_ISDIR(status.st_mode)) return DW_REFUSE(file->path, err, "is a directory; expected %s", expected);
    if (!S_ISREG(status.st_mode)) return DW_REFUSE(file->path, err, "is not a regular file; expected %s", expected);
    if (status.st_size == 0) return DW_OK;
    return file->way == DW_FILE_MAP ? map_all(file, descriptor, status.st_size, err)
                                    : read_all(file, descriptor, status.st_size, err);
}

static dw_status open_and_load(dw_file *file, const char *expected, dw_error *err)
{
    dw_status status;
    /* Without O_NONBLOCK the open of a pipe that nobody writes would never return. */
    const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return DW_REFUSE(file->path, err, "%s", strerror(errno));
    status = load(file, descriptor, expected, err);
    close(descriptor);
    return status;
}

dw_status dw_file_open(dw_file *file, const char *path, const char *expected, dw_file_way way, dw_error *err)
{
    const int64_t length = (int64_t)strlen(path);
    dw_status status;
    *file = (dw_file){.way = way};
    DW_TRY(DW_ALLOC(&file->path, length + 1, "path", err));
    memcpy(file->path, path, (size_t)length);
    status = open_and_load(file, expected, err);
    if (status != DW_OK) dw_file_close(file);
    return status;
}

void dw_file_close(dw_file *file)
{
    if (file->way == DW_FILE_READ) {
        dw_free((void *)file->data);
    } else if (file->data != NULL) {
        munmap((void *)file->data, (size_t)file->bytes);
    }
    dw_free(file->path);
    *file = (dw_file){0};
}

dw_status dw_path_join(char **out, const char *directory, const char *name, dw_error *err)
{
    const size_t length = strlen(directory);
    const char *slash = length > 0 && directory[length - 1] == '/' ? "" : "/";
    const size_t bytes = length + 1 + strlen(name) + 1;
    DW_TRY(DW_ALLOC(out, (int64_t)bytes, "path", err));
    snprintf(*out, bytes, "%s%s%s", directory, slash, name);
    return DW_OK;
}
