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
    unsigned statuses;  /* set of accepted statuses */
    char message[96];   /* expected part of the message; "" accepts any */
    size_t place;       /* for the builder: the position */
    uint64_t value;     /* for the builder: the bytes */
    const char *text;   /* for the builder */
    size_t text_length;
    const st_gguf_known *known;
};

/* All cases; the table is built on the first call. */
const mutate_case *mutate_cases(size_t *count);

/* Adds a case; called by the files that fill the table. */
mutate_case *mutate_add(mutate_build *build, unsigned statuses, const char *message, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
void mutate_add_patches(void);
void mutate_add_files(void);
void mutate_add_known(void);

/* Small valid files, five in all. `directory_end` is the end of the directory, `file_end` the minimum file length. */
enum { MUTATE_VALID_COUNT = 5 };
void mutate_valid(size_t index, gguf_writer *writer, size_t *directory_end, size_t *file_end);

#endif
