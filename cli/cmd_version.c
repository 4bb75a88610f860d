/* strata version */
#include "cli.h"

strata_status cli_cmd_version(const cli_arguments *arguments, strata_error *error)
{
    (void)arguments;
    (void)error;
    puts("strata " STRATA_VERSION);
    return STRATA_OK;
}
