/* A temporary folder that stands in for / or /sys: set-up and tear-down of a cmocka test, and files in it. */
#ifndef TEST_SUPPORT_TREE_H
#define TEST_SUPPORT_TREE_H

extern char tree_root[64];

int tree_make(void **state);
int tree_remove(void **state);

/* Writes a file, with the folders above it; `path` begins with a slash. */
void tree_write(const char *path, const char *text);

#endif
