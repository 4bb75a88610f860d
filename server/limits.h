/* Every limit on what clients may send or cause, in one table. */
#ifndef SERVER_LIMITS_H
#define SERVER_LIMITS_H

enum {
    LIMIT_BODY_BYTES = 32 << 20,
    LIMIT_HEADER_BYTES = 32 << 10,     /* request line and headers */
    LIMIT_JSON_DEPTH = 64,
    LIMIT_CONNECTIONS = 4096,          /* and what the file descriptors allow */
    LIMIT_QUEUE = 256,                 /* requests that are prepared or wait until the engine admits them */
    LIMIT_QUEUE_ASIDE = 64,            /* others that are prepared while the queue is full: metrics, counts of tokens */
    LIMIT_STOPS = 32,
    LIMIT_STOP_BYTES = 1024,
    LIMIT_CHOICES = 16,                /* n, and prompts × n */
    LIMIT_TOP_LOGPROBS = 20,
    LIMIT_BIASES = 1024,
    LIMIT_MESSAGES = 65536,
    LIMIT_UNSENT_BYTES = 2 << 20,      /* of one stream whose client does not read */
    LIMIT_SOCKET_BYTES = 256 << 10,    /* unsent bytes in the kernel */
    LIMIT_HEADER_SECONDS = 30,         /* until the headers of a connection's first request are complete */
    LIMIT_IDLE_SECONDS = 75,           /* until those of its next request are */
    LIMIT_BODY_SECONDS = 120,
    LIMIT_KEEP_ALIVE_SECONDS = 5,      /* between comments in a silent stream */
    LIMIT_DRAIN_SECONDS = 10,          /* after SIGTERM, for running answers to finish and for clients to read them */
    LIMIT_CANCEL_SECONDS = 600,        /* then, for cancelled answers to end */
    LIMIT_LAST_SECONDS = 1,            /* then, at least, for clients to read the end of an answer */
    LIMIT_RETRY_SECONDS = 2,           /* Retry-After of a full queue */
    LIMIT_KNOWN_CONVERSATIONS = 64,    /* whose ids are remembered */
    LIMIT_KNOWN_TOKENS = 8 << 20,      /* of all of them */
};

#endif
