#include "support/tree.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "support/kit.h"

char tree_root[64];

int tree_make(void **state)
{
    (void)state;
    snprintf(tree_root, sizeof tree_root, "/tmp/strata-tree-XXXXXX");
    return mkdtemp(tree_root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

int tree_remove(void **state)
{
    (void)state;
    return nftw(tree_root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

void tree_write(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", tree_root, path);
    for (char *slash = strchr(full + strlen(tree_root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}
