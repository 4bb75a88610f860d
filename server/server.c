#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

void server_log(const server *s, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    if (vsnprintf(line, sizeof line, format, args) >= 0 && s->options.log) s->options.log(line);
    va_end(args);
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* A PEM file (free). */
static strata_status read_file(const char *path, char **out, strata_error *error)
{
    enum { PEM_BYTES_MAX = 1 << 20 };
    FILE *file = fopen(path, "r");
    if (!file) return server_error(error, STRATA_FILE, NULL, "%s: cannot read: %s", path, strerror(errno));
    char *text = calloc(1, PEM_BYTES_MAX + 1);
    size_t length = text ? fread(text, 1, PEM_BYTES_MAX, file) : 0;
    fclose(file);
    if (!text) return server_error(error, STRATA_MEMORY, NULL, "no memory for %s", path);
    if (length == 0) {
        free(text);
        return server_error(error, STRATA_FILE, NULL, "%s: expected a PEM file, found nothing", path);
    }
    *out = text;
    return STRATA_OK;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        uint32_t host;
        memcpy(&host, &((const struct sockaddr_in *)(const void *)address)->sin_addr, sizeof host);
        return (ntohl(host) >> 24) == 127;
    }
    struct sockaddr_in6 six;
    memcpy(&six, address, sizeof six);
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

static strata_status bind_address(server *s, const struct addrinfo *found, strata_error *error)
{
    const int on = 1, buffer = LIMIT_SOCKET_BYTES;
    s->loopback = is_loopback(found->ai_addr);
    if (!s->loopback && !s->options.api_key_file && !s->options.no_api_key)
        return server_error(error, STRATA_USAGE, "give --api-key-file, or --no-api-key to let everyone in",
                            "serve: --host %s: other machines can connect, so an API key is needed", s->options.host);
    s->socket = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->socket >= 0) {
        (void)setsockopt(s->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        (void)setsockopt(s->socket, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer); /* accepted sockets inherit it */
    }
    if (s->socket < 0 || bind(s->socket, found->ai_addr, found->ai_addrlen) != 0)
        return server_error(error, STRATA_NETWORK,
                            errno == EADDRINUSE ? "choose another --port; 0 picks a free one" : NULL,
                            "serve: cannot bind %s port %u: %s", s->options.host, s->options.port, strerror(errno));
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    char port[16];
    if (getsockname(s->socket, (struct sockaddr *)&bound, &length) != 0 ||
        getnameinfo((struct sockaddr *)&bound, length, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0)
        return server_error(error, STRATA_NETWORK, NULL, "serve: cannot read the port: %s", strerror(errno));
    s->port = (uint16_t)atoi(port);
    return STRATA_OK;
}

static strata_status bind_port(server *s, strata_error *error)
{
    char port[16];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%u", s->options.port);
    int cause = getaddrinfo(s->options.host, port, &hints, &found);
    if (cause != 0)
        return server_error(error, STRATA_USAGE, "give an address of this machine: 127.0.0.1, ::1 or 0.0.0.0",
                            "serve: --host %s: %s", s->options.host, gai_strerror(cause));
    strata_status status = bind_address(s, found, error);
    freeaddrinfo(found);
    if (status != STRATA_OK) return status;
    bool six = strchr(s->options.host, ':') != NULL;
    snprintf(s->url, sizeof s->url, "%s://%s%.255s%s:%u", s->options.tls_cert ? "https" : "http", six ? "[" : "",
             s->options.host, six ? "]" : "", s->port);
    return STRATA_OK;
}

strata_status server_open(const server_options *options, server **out, strata_error *error)
{
    server *s = calloc(1, sizeof *s);
    if (!s) return server_error(error, STRATA_MEMORY, NULL, "no memory for the server");
    s->options = *options;
    s->socket = -1;
    strata_status status = STRATA_OK;
    if (!options->tls_cert != !options->tls_key)
        status = server_error(error, STRATA_USAGE, NULL, "serve: expected both --tls-cert and --tls-key, found one");
    if (status == STRATA_OK && options->tls_cert) status = read_file(options->tls_cert, &s->tls_cert, error);
    if (status == STRATA_OK && options->tls_key) status = read_file(options->tls_key, &s->tls_key, error);
    if (status == STRATA_OK) status = server_policy_open(s, error);
    if (status == STRATA_OK) status = bind_port(s, error);
    if (status == STRATA_OK) *out = s;
    else server_close(s);
    return status;
}

const char *server_url(const server *s)
{
    return s->url;
}

void server_close(server *s)
{
    if (!s) return;
    if (s->socket >= 0) close(s->socket);
    server_policy_close(s);
    server_chat_close(&s->chat);
    json_decref(s->card_json);
    strata_free(s->card);
    free(s->tls_cert);
    free(s->tls_key);
    free(s);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static int wake_on_signal = -1; /* an eventfd; the handler may write to it */

static void on_signal(int number)
{
    uint64_t one = 1;
    int saved = errno;
    (void)number;
    (void)!write(wake_on_signal, &one, sizeof one);
    errno = saved;
}

static strata_status describe(server *s, strata_error *error)
{
    strata_status status = strata_model_describe(s->engine.model, 0, &s->card, error);
    if (status != STRATA_OK) return status;
    s->card_json = json_loads(s->card, 0, NULL);
    if (!s->card_json) return server_error(error, STRATA_MEMORY, NULL, "no memory for the model's description");
    json_object_del(s->card_json, "path"); /* no client learns a path of this machine */
    const char *file = strrchr(s->engine.path, '/');
    snprintf(s->model, sizeof s->model, "%.120s", file ? file + 1 : s->engine.path);
    char *ending = strrchr(s->model, '.');
    if (ending && strcmp(ending, ".gguf") == 0) *ending = '\0';
    for (size_t i = s->options.alias_count; i > 0; i--)
        if (strcmp(s->options.aliases[i - 1], "*") != 0)
            snprintf(s->model, sizeof s->model, "%.120s", s->options.aliases[i - 1]);
    s->started = (int64_t)time(NULL);
    return STRATA_OK;
}

static strata_status start(server *s, strata_error *error)
{
    http_options http = {.socket = s->socket, .tls_cert = s->tls_cert, .tls_key = s->tls_key,
                         .timeout_seconds = s->options.timeout_seconds, .events = server_routes(s)};
    strata_status status = describe(s, error);
    if (status == STRATA_OK) status = server_chat_open(s, error);
    if (status == STRATA_OK) status = server_work_start(&s->work, s, s->engine.sessions, error);
    if (status == STRATA_OK) status = http_start(&http, &s->http, error);
    if (status == STRATA_OK) s->socket = -1; /* the transport owns it now */
    return status;
}

/* Waits for SIGTERM or SIGINT. */
static void wait_for_signal(void)
{
    uint64_t signals;
    while (read(wake_on_signal, &signals, sizeof signals) < 0 && errno == EINTR) continue;
}

static void drain(server *s)
{
    atomic_store(&s->draining, true);
    double end = server_now() + LIMIT_DRAIN_SECONDS;
    http_quiesce(s->http);
    server_work_close(&s->work);
    bool idle = server_work_wait_idle(&s->work, LIMIT_DRAIN_SECONDS);
    for (int i = 0; !idle && i < LIMIT_CANCEL_SECONDS; i++) { /* a request that was just prepared is cancelled in the next round */
        server_work_cancel_all(&s->work);
        idle = server_work_wait_idle(&s->work, 1);
    }
    double left = end - server_now();
    http_wait_sent(s->http, left > LIMIT_LAST_SECONDS ? left : LIMIT_LAST_SECONDS);
}

strata_status server_run(server *s, const server_engine *engine, void (*ready)(const server *s), strata_error *error)
{
    struct sigaction action = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN}, interrupt, terminate, pipe;
    s->engine = *engine;
    server_known_open(&s->known);
    wake_on_signal = eventfd(0, EFD_CLOEXEC);
    sigaction(SIGINT, &action, &interrupt);
    sigaction(SIGTERM, &action, &terminate);
    sigaction(SIGPIPE, &ignore, &pipe); /* a client that goes away is not the end of the program */
    strata_status status = start(s, error);
    if (status == STRATA_OK) {
        if (ready) ready(s);
        wait_for_signal();
        drain(s);
    }
    server_work_stop(&s->work);
    http_stop(s->http);
    s->http = NULL;
    server_work_free(&s->work);
    sigaction(SIGINT, &interrupt, NULL);
    sigaction(SIGTERM, &terminate, NULL);
    sigaction(SIGPIPE, &pipe, NULL);
    close(wake_on_signal);
    server_known_close(&s->known);
    return status;
}
