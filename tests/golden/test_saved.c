/* State of conversations on disk, through strata.h: a restart reuses it with the logits of a cold run, or starts cold: after a
 * clean end, after kill -9 at random moments, and with files that are damaged or belong to something else. */
#include "support/session_rig.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine.h"
#include "identity.h"
#include "support/random.h"
#include "support/tree.h"

enum { PAGE = SESSION_PAGE, COUNT = 300, TEXTS = 3 };

/* Full attention; windows; recurrent state. */
static const char *const models[] = {"llama", "gemma4-e", "qwen35"};

static char folder[128];

static strata_engine_options saving(void)
{
    snprintf(folder, sizeof folder, "%s/state", tree_root);
    return (strata_engine_options){.threads = 1, .kv_type = "f32", .kv_save = folder, .sessions = 2, .batch = 64};
}

static void text_of(uint32_t number, strata_token tokens[COUNT])
{
    for (uint32_t i = 0; i < COUNT; i++) tokens[i] = (strata_token)((i * 31 + number * (i / 70 + 7)) % 280);
}

/* Runs a prompt in a new session; returns how many tokens were reused. The logits are those of a cold run. */
static uint64_t reused(const session_rig *r, uint32_t number, uint32_t count)
{
    strata_token tokens[COUNT];
    text_of(number, tokens);
    strata_session *session = session_open(r);
    uint64_t ran = session_prompt(session, tokens, count);
    session_check(r, session, tokens, count);
    strata_session_free(session);
    return count - ran;
}

static uint64_t reused_after_restart(const char *name, strata_engine_options options, uint32_t number, uint32_t count)
{
    session_rig r;
    session_rig_open(&r, name, options);
    uint64_t kept = reused(&r, number, count);
    session_rig_close(&r);
    return kept;
}

/* Calls `visit` for each saved file; returns how many there are. */
static int each_file(void (*visit)(const char *path, long bytes))
{
    int count = 0;
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        assert_int_equal(info.st_mode & 0777, 0600);
        if (visit) visit(path, (long)info.st_size);
        count++;
    }
    if (dir) closedir(dir);
    return count;
}

static void a_restart_reuses_what_was_stored(void **state)
{
    const char *name = *state;
    strata_engine_options options = saving();
    assert_int_equal(reused_after_restart(name, options, 1, COUNT), 0);
    struct stat info;
    assert_int_equal(stat(folder, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_true(each_file(NULL) > 0);
    uint64_t kept = reused_after_restart(name, options, 1, COUNT);
    if (kept + PAGE < COUNT - PAGE) fail_msg("%s: %u of %u tokens were reused", name, (unsigned)kept, COUNT);
    int files = each_file(NULL);
    assert_true(reused_after_restart(name, options, 1, COUNT) >= kept);
    assert_int_equal(each_file(NULL), files); /* nothing new to save */
    assert_true(reused_after_restart(name, options, 2, COUNT) < PAGE); /* another text */
}

static void a_restart_with_a_simulated_gpu(void **state)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    strata_engine_options options = saving();
    placement.device = "sim";
    placement.vram_bytes = (uint64_t)2 << 30;
    placement.ram_bytes = (uint64_t)8 << 30;
    placement.layers = -1;
    options.placement = &placement;
    assert_int_equal(reused_after_restart(*state, options, 1, COUNT), 0);
    uint64_t kept = reused_after_restart(*state, options, 1, COUNT);
    if (kept + PAGE < COUNT - PAGE) fail_msg("%s: %u of %u tokens were reused", (const char *)*state, (unsigned)kept, COUNT);
    options.kv_ram_bytes = STRATA_KV_RAM_OFF; /* nothing can be saved or loaded */
    assert_int_equal(reused_after_restart(*state, options, 1, COUNT), 0);
}

/* A conversation that grows saves its new pages, and a prompt finds them over several files. */
static void growing_over_several_restarts(void **state)
{
    strata_engine_options options = saving();
    for (uint32_t count = 80; count < COUNT; count += 70) {
        uint64_t kept = reused_after_restart(*state, options, 1, count);
        if (kept + 70 + 2 * PAGE < count) fail_msg("%u of %u tokens were reused", (unsigned)kept, count);
    }
    assert_true(each_file(NULL) > 1);
}

static void state_of_something_else_is_not_used(void **state)
{
    (void)state;
    strata_engine_options options = saving(), other = saving();
    assert_int_equal(reused_after_restart("llama", options, 1, COUNT), 0);
    other.kv_type = "f16";
    session_rig r;
    session_rig_open(&r, "llama", other);
    strata_token tokens[COUNT];
    text_of(1, tokens);
    assert_int_equal(session_prompt(r.session, tokens, COUNT), COUNT);
    session_rig_close(&r);
    assert_int_equal(reused_after_restart("qwen35", options, 1, COUNT), 0);
    assert_true(reused_after_restart("llama", options, 1, COUNT) >= COUNT - 2 * PAGE);
}

static uint32_t damage_at; /* in 1/16 of the file */

static void damage(const char *path, long bytes)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    long at = bytes / 16 * (long)damage_at;
    fseek(file, at, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 0x40, file);
    fclose(file);
}

static void cut_short(const char *path, long bytes)
{
    assert_int_equal(truncate(path, bytes / 16 * (long)damage_at), 0);
}

static void damaged_files_are_ignored(void **state)
{
    for (int cuts = 0; cuts < 2; cuts++)
        for (damage_at = 0; damage_at < 16; damage_at += kit_is_slow() ? 5 : 3) {
            tree_remove(NULL);
            tree_make(NULL);
            strata_engine_options options = saving();
            assert_int_equal(reused_after_restart(*state, options, 1, COUNT), 0);
            each_file(cuts ? cut_short : damage);
            (void)reused_after_restart(*state, options, 1, COUNT); /* checks the logits */
        }
}

static void make_public(const char *path, long bytes)
{
    (void)bytes;
    assert_int_equal(chmod(path, 0644), 0);
}

static void rights_are_checked(void **state)
{
    (void)state;
    session_rig r;
    strata_engine_options options = saving();
    strata_error error;
    assert_int_equal(reused_after_restart("llama", options, 1, COUNT), 0);
    each_file(make_public);
    assert_int_equal(reused_after_restart("llama", options, 1, COUNT), 0); /* ignored, and written again */
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(strata_model_open(kit_path("llama.gguf"), NULL, &r.model, &error), STRATA_OK);
    assert_int_equal(strata_engine_new(r.model, &options, &r.engine, &error), STRATA_FILE);
    assert_non_null(strstr(error.message, "expected rights 0700"));
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(strata_engine_new(r.model, &options, &r.engine, &error), STRATA_OK);
    strata_engine *second;
    assert_int_equal(strata_engine_new(r.model, &options, &second, &error), STRATA_FILE); /* one at a time */
    assert_non_null(strstr(error.message, "another process uses the folder"));
    strata_engine_free(r.engine);
    strata_model_close(r.model);
}

static void the_limit_removes_old_files(void **state)
{
    (void)state;
    strata_engine_options options = saving();
    assert_int_equal(reused_after_restart("llama", options, 1, COUNT), 0);
    long one = 0;
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    while ((entry = readdir(dir))) {
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) one += (long)info.st_size;
    }
    closedir(dir);
    options.kv_save_bytes = (uint64_t)one * 2;
    assert_int_equal(reused_after_restart("llama", options, 2, COUNT), 0);
    assert_int_equal(reused_after_restart("llama", options, 3, COUNT), 0);
    assert_true(reused_after_restart("llama", options, 3, COUNT) > 0);
    assert_int_equal(reused_after_restart("llama", options, 1, COUNT), 0); /* the oldest is gone */
}

/* --- kill -9 ------------------------------------------------------------------------------------------------------ */

/* Saves one conversation after the other, until it is killed. Writes a byte to `told` after the first. */
static void save_for_ever(const char *name, uint32_t seed, int told)
{
    session_rig r;
    session_rig_open(&r, name, saving());
    random_state = seed;
    for (bool first = true;; first = false) {
        strata_token tokens[COUNT];
        text_of(first ? 1 + seed % TEXTS : between(1, TEXTS), tokens);
        strata_session *session = session_open(&r);
        (void)session_prompt(session, tokens, first ? COUNT : between(PAGE, COUNT));
        strata_session_free(session);
        (void)!write(told, "", 1);
    }
}

/* Every second process is killed after it has saved something, the others at any moment. */
static void killed_at_random_moments(void **state)
{
    const char *name = *state;
    uint64_t kept = 0;
    for (uint32_t round = 1; round <= (kit_is_slow() ? 6 : 20); round++) {
        tree_remove(NULL); /* only what the killed process has saved can be reused */
        tree_make(NULL);
        random_state = round * 77;
        useconds_t delay = (useconds_t)between(1000, kit_is_slow() ? 500000 : 100000);
        int told[2];
        char byte;
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            save_for_ever(name, round, told[1]);
            _exit(1);
        }
        close(told[1]);
        if (round % 2) assert_int_equal(read(told[0], &byte, 1), 1);
        usleep(delay);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        close(told[0]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        session_rig r;
        session_rig_open(&r, name, saving());
        kept += reused(&r, 1 + round % TEXTS, COUNT);
        session_rig_close(&r);
    }
    print_message("%s: %u tokens were reused after kills\n", name, (unsigned)kept);
    assert_true(kept > 0);
}

/* A fine-tune has the same keys, tensors and length, and other weights. */
static void other_weights_are_another_model(void **state)
{
    session_rig r;
    char path[64];
    snprintf(path, sizeof path, "%s.gguf", (const char *)*state);
    session_rig_open(&r, *state, (strata_engine_options){.threads = 1});
    FILE *file = fopen(kit_path(path), "rb");
    assert_non_null(file);
    static unsigned char bytes[8 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(size, 1, sizeof bytes - 1);
    st_digest found[2];
    for (int changed = 0; changed < 2; changed++) {
        st_gguf *gguf = NULL;
        assert_int_equal(st_gguf_open_memory(path, bytes, size, &gguf, NULL), STRATA_OK);
        const st_gguf_tensor *t = st_gguf_tensor_at(gguf, st_gguf_tensor_count(gguf) / 2);
        if (changed) bytes[(size_t)(t->data - bytes) + t->bytes / 2] ^= 1;
        found[changed] = st_identity_of(gguf, r.engine->plan);
        st_gguf_close(gguf);
    }
    assert_memory_not_equal(&found[0], &found[1], sizeof *found);
    session_rig_close(&r);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; CMUnitTestFunction function; bool once; } cases[] = {
        {"a restart", a_restart_reuses_what_was_stored, false},
        {"a restart with a simulated GPU", a_restart_with_a_simulated_gpu, false},
        {"growing over several restarts", growing_over_several_restarts, false},
        {"state of something else", state_of_something_else_is_not_used, true},
        {"other weights", other_weights_are_another_model, true},
        {"damaged files", damaged_files_are_ignored, false}, {"rights", rights_are_checked, true},
        {"the limit", the_limit_removes_old_files, true}, {"killed at random moments", killed_at_random_moments, false}};
    enum { CASES = sizeof cases / sizeof *cases, MODELS = sizeof models / sizeof *models };
    static struct CMUnitTest tests[CASES * MODELS];
    static char names[CASES * MODELS][64];
    size_t count = 0;
    for (size_t k = 0; k < CASES; k++)
        for (size_t m = 0; m < (cases[k].once ? 1 : MODELS); m++, count++) {
            snprintf(names[count], sizeof *names, "%s, %s", cases[k].name, models[m]);
            tests[count] = (struct CMUnitTest){names[count], cases[k].function, tree_make, tree_remove, (void *)(uintptr_t)models[m]};
        }
    return kit_run("saved", tests, count, NULL, NULL, argc, argv);
}
