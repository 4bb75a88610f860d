/* Shared by chat.c (branches, messages, answers) and chat_commands.c (what begins with a slash). */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include "cli.h"

/* A conversation: its messages (the system message first, if there is one), and a session that has run them. */
typedef struct cli_branch {
    json_t *messages;
    strata_session *session;
} cli_branch;

typedef struct cli_chat_state {
    cli_talk *talk;
    const strata_template *chat_template;
    char *system;         /* of new conversations; NULL: none */
    cli_branch *branches; /* [branch_count]; users count them from 1 */
    size_t branch_count, current;
    cli_line *line;
    bool over;
} cli_chat_state;

/* ---- chat.c ------------------------------------------------------------------------------------------------------ */

cli_branch *cli_chat_branch(const cli_chat_state *c);
/* Adds a branch; takes both, and frees them if it fails. */
strata_status cli_chat_add_branch(cli_chat_state *c, json_t *messages, strata_session *session, strata_error *error);
/* Messages of the user and answers. An answered message and its answer come and go together. */
size_t cli_chat_count(const cli_branch *b);
void cli_chat_remove_last(cli_branch *b);
/* Removes all messages but the system's. */
strata_status cli_chat_reset(cli_chat_state *c, strata_error *error);
/* Answers the last message. `*answered` is false if there is no answer to keep: the prompt or the template failed, or
 * Ctrl-C came before the first text. */
strata_status cli_chat_answer(cli_chat_state *c, bool *answered, strata_error *error);

/* ---- chat_commands.c --------------------------------------------------------------------------------------------- */

/* Runs the text if it is a command: a slash and a word of letters, with or without an argument. A path (/usr/bin), a
 * fraction and a text of several lines are messages. */
bool cli_chat_command(cli_chat_state *c, char *text, strata_status *status, strata_error *error);

#endif
