/* A session: a conversation on the engine's KV cache, with the tokens that it holds. Its calls are requests to the
 * engine's scheduler. Private to session.c and generate.c. */
#ifndef ST_SESSION_H
#define ST_SESSION_H

#include "engine.h"
#include "sampler/sampler.h"

struct strata_session {
    strata_engine *engine;
    st_conversation *conversation;
    strata_token *tokens;    /* [context]: of the conversation; the stored ones come first */
    uint32_t count;          /* of the tokens */
    bool computed;           /* the slot has the logits after the last token, as long as the session keeps it */
    float *logits;           /* [vocab]: the copy that strata_session_logits returns; NULL before the first */
    atomic_bool interrupted; /* calls stop while it is true */
    atomic_bool stop;        /* the call under way stops: interrupted or cancelled */
    pthread_mutex_t lock;    /* guards the next */
    bool in_call;
    st_random random;        /* the stream that generations draw from */
    bool has_random;
};

/* A call begins and ends; in between strata_session_cancel stops it. */
void st_session_begin(strata_session *session);
void st_session_end(strata_session *session);

/* A request for the session's own tokens. */
st_request st_session_request(strata_session *session);

#endif
