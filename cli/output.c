/* Atomic output files: written to a temporary file in the same folder, then renamed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

static strata_status fail_write(const cli_output *output, int cause, strata_error *error)
{
    return cli_fail(error, STRATA_RUNTIME, cause == ENOSPC ? "make room on the disk" : NULL, "%s: cannot write: %s",
                    output->path, strerror(cause));
}

/* A device, a pipe or a link (such as /dev/stdout) is written directly: renaming would replace it. */
static bool is_special(const char *path)
{
    struct stat facts;
    return lstat(path, &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
}

static FILE *open_beside(cli_output *output)
{
    if (asprintf(&output->fresh, "%s.XXXXXX", output->path) < 0) {
        output->fresh = NULL;
        errno = ENOMEM;
        return NULL;
    }
    int file = mkstemp(output->fresh);
    if (file < 0) {
        int cause = errno;
        free(output->fresh);
        output->fresh = NULL;
        errno = cause;
        return NULL;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(file, 0666 & ~mask); /* mkstemp makes files that only the owner can read */
    cli_interrupt_remove(output->fresh);
    return fdopen(file, "wb");
}

strata_status cli_output_open(const char *path, cli_output *output, strata_error *error)
{
    *output = (cli_output){.path = path};
    if (strcmp(path, "-") == 0) {
        output->path = "standard output";
        output->stream = stdout;
        return STRATA_OK;
    }
    output->stream = is_special(path) ? fopen(path, "wbe") : open_beside(output);
    return output->stream ? STRATA_OK : fail_write(output, errno, error);
}

strata_status cli_output_close(cli_output *output, strata_status status, strata_error *error)
{
    if (!output->stream) return status;
    if (output->stream == stdout) return status == STRATA_OK ? cli_flush(error) : status;
    errno = 0;
    bool whole = fflush(output->stream) == 0 && !ferror(output->stream);
    if (whole && output->fresh) whole = fsync(fileno(output->stream)) == 0;
    int cause = errno ? errno : EIO;
    if (fclose(output->stream) != 0 && whole) {
        whole = false;
        cause = errno;
    }
    if (status == STRATA_OK && whole && output->fresh && rename(output->fresh, output->path) != 0) {
        whole = false;
        cause = errno;
    }
    cli_interrupt_remove(NULL);
    if (output->fresh && (status != STRATA_OK || !whole)) unlink(output->fresh);
    if (status == STRATA_OK && !whole) status = fail_write(output, cause, error);
    free(output->fresh);
    *output = (cli_output){0};
    return status;
}
