/* One request for text: its prompts, its choices, and the translator of its API. Owns the request from its body to its
 * last byte. Knows neither HTTP nor how a session runs. */
#ifndef SERVER_TASK_H
#define SERVER_TASK_H

#include <pthread.h>
#include <stdatomic.h>

#include "fields.h"
#include "http.h"
#include "text.h"

typedef struct server_task server_task;
typedef struct server_choice server_choice;

/* A prompt: tokens, and positions where later prompts may branch off. */
enum { PROMPT_MARKS_MAX = 3 };
typedef struct server_prompt {
    strata_token *tokens; /* [count]; strata_free */
    size_t count;
    size_t marks[PROMPT_MARKS_MAX]; /* [mark_count], ascending */
    size_t mark_count;
    bool thinking; /* the answer begins inside the reasoning */
    bool chat;     /* the template made it, so the answer may have reasoning */
    size_t reused; /* tokens found in the KV cache */
} server_prompt;

typedef enum server_finish { FINISH_END, FINISH_STOP, FINISH_LENGTH, FINISH_CANCEL } server_finish;

/* The probability of a sampled token and of the most likely ones. */
typedef struct server_likely {
    strata_token token;
    float logprob;
} server_likely;
typedef struct server_logprob {
    server_likely chosen;
    server_likely *top; /* [top_count] */
    size_t top_count;
} server_logprob;

/* A part of an answer. */
typedef struct server_piece {
    server_kind kind;
    const char *text;
    size_t length;
    const server_logprob *logprobs; /* [logprob_count]: of the tokens since the last piece */
    size_t logprob_count;
} server_piece;

struct server_choice {
    server_task *task;
    size_t index;
    server_prompt *prompt;
    bool leads; /* runs the prompt, for the other choices of the prompt, too */
    bool runs;  /* the engine has admitted it */
    server_choice *next, *previous; /* in the queue */
    bool queued;
    strata_session *session; /* guarded by the task's session_lock */
    strata_decoder *decoder;
    server_text text;
    server_buf parts[KIND_COUNT]; /* the texts so far */
    strata_token *sampled;        /* [sampled_count]: with the end token */
    size_t sampled_count, sampled_capacity;
    size_t tokens;                /* generated, without the end token */
    server_logprob *logprobs;     /* [logprob_count] */
    size_t logprob_count, logprob_capacity, logprobs_sent;
    server_finish finish;
    bool open, ended;
    double last_seconds; /* of the last token */
    server_buf out; /* bytes on their way to the client */
    int block, block_kind; /* for a translator: the number of the open block or item, and its kind */
};

/* An API's translator: from a body to a task, from pieces to its bytes. The task's lock is held while it writes. */
typedef struct server_api {
    const char *name;
    unsigned fields; /* bit in the table of fields */
    const char *stream_type;
    const char *id_prefix;
    bool stream; /* default of the field `stream` */
    bool (*read)(server_task *task, server_fail *fail);
    void (*write_start)(server_task *task, server_buf *out);    /* the request was admitted */
    void (*write_prompted)(server_task *task, server_buf *out); /* the first prompt has run */
    void (*write_piece)(server_task *task, server_choice *choice, const server_piece *piece, server_buf *out);
    void (*write_choice_end)(server_task *task, server_choice *choice, server_buf *out);
    void (*write_end)(server_task *task, server_buf *out);
    void (*write_whole)(server_task *task, server_buf *out); /* the unstreamed answer */
    void (*write_failure)(server_task *task, const server_fail *fail, server_buf *out); /* inside a stream */
    void (*write_error)(const server_fail *fail, server_buf *out); /* the body of an error */
    void (*write_keep_alive)(server_task *task, server_buf *out);
} server_api;

struct server_task {
    server_task *next, *previous; /* in the list of unfinished tasks; guarded by the work's lock */
    struct server *server;
    http_request *http;
    const server_api *api;
    atomic_uint references;
    json_t *body;
    char id[48];
    char model[128]; /* as the client calls it */
    int64_t created; /* seconds since the epoch */
    server_parameters parameters;
    json_t *messages, *tools, *arguments; /* for the template; NULL: none */
    bool count_only;                      /* the client asks for the number of prompt tokens */
    server_prompt *prompts; /* [prompt_count] */
    size_t prompt_count;
    server_choice *choices; /* [choice_count]; those of one prompt are neighbours */
    size_t choice_count;
    double arrived_seconds, admitted_seconds, first_seconds; /* came; the engine began its prompt; its first token */
    bool waits; /* counts in the queue; guarded by the work's lock */
    atomic_bool cancelled;

    pthread_mutex_t session_lock; /* guards the list of choices and their sessions; taken before the work's lock */
    pthread_mutex_t lock;         /* guards what follows, and the order of writes */
    size_t remaining;             /* choices that have not ended */
    bool admitted, prompted, failed;
    int64_t sequence; /* for a translator: the number of the next event */
    server_fail fail;
};

server_task *server_task_new(struct server *server, http_request *http, const server_api *api);
void server_task_ref(server_task *task);
bool server_task_ref_if_alive(server_task *task); /* for a task in the list, whose last reference may be going */
void server_task_unref(server_task *task);
/* Frees what a task has read and made; without its transport it may then be freed. */
void server_task_clear(server_task *task);

/* Makes the choices of the prompts. */
bool server_task_choices(server_task *task, server_fail *fail);

size_t server_task_prompt_tokens(const server_task *task);
size_t server_task_reused_tokens(const server_task *task);
size_t server_task_answer_tokens(const server_task *task);

/* The client has gone: no further step is run for this task. Any thread. */
void server_task_cancel(server_task *task);
/* Stops the session's call, or its next call if none is under way. */
void server_session_stop(strata_session *session);

/* Sends a stream's first bytes, if the answer is streamed. */
void server_task_admit(server_task *task);
/* The prompt has run. */
void server_task_prompted(server_task *task);
/* A token was sampled. False: the answer ends here. */
bool server_choice_token(server_choice *choice, const strata_sampled *sampled);
/* The choice has ended; the last one sends the end of the answer. */
void server_choice_end(server_choice *choice, server_finish finish);
/* The task has failed before it was admitted or while it ran. */
void server_task_fail(server_task *task, const server_fail *fail);

#endif
