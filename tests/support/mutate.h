/* Malformed GGUF files, each with a name, a builder, and the expected error. */
#ifndef TEST_SUPPORT_MUTATE_H
#define TEST_SUPPORT_MUTATE_H

#include "gguf/known.h"
#include "support/gguf_writer.h"

/* Sets of statuses. */
#define MUTATE_STATUS(name) (1u << STRATA_##name)
#define MUTATE_ANY_ERROR (MUTATE_STATUS(FORMAT) | MUTATE_STATUS(UNSUPPORTED) | MUTATE_STATUS(FILE))

typedef struct mutate_case mutate_case;
typedef void mutate_build(const mutate_case *row, gguf_writer *writer);

struct mutate_case {
    char name[112];
    mutate_build *build;
    unsigned statuses;  /* any of them is accepted */
    char message[96];   /* must be in the message; "" for any */
    size_t place;       /* for the builder: where */
    uint64_t value;     /* for the builder: what */
    const char *text;   /* for the builder */
    size_t text_length;
    const st_gguf_known *known;
};

/* All cases; the table is built on the first call. */
const mutate_case *mutate_cases(size_t *count);

/* Adds a row; the parts of the table do it. */
mutate_case *mutate_add(mutate_build *build, unsigned statuses, const char *message, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
void mutate_add_patches(void);
void mutate_add_files(void);
void mutate_add_known(void);

/* Small valid files: five of them. `directory_end` is where the directory ends; `file_end` the length it needs. */
enum { MUTATE_VALID_COUNT = 5 };
void mutate_valid(size_t index, gguf_writer *writer, size_t *directory_end, size_t *file_end);

#endif
