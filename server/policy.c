/* Who may ask: the Host header (DNS rebinding), the Origin header (other web pages) and API keys. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core.h"

/* ---- keys ------------------------------------------------------------------------------------------------------ */

strata_status server_policy_open(server *s, strata_error *error)
{
    const char *path = s->options.api_key_file;
    if (!path) return STRATA_OK;
    FILE *file = fopen(path, "r");
    if (!file) return server_error(error, STRATA_FILE, NULL, "%s: cannot read the API keys: %s", path, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    strata_status status = STRATA_OK;
    while (status == STRATA_OK && (length = getline(&line, &size, file)) >= 0) {
        while (length > 0 && strchr(" \t\r\n", line[length - 1])) length--;
        if (length == 0 || line[0] == '#') continue;
        server_key *grown = realloc(s->keys, (s->key_count + 1) * sizeof *grown);
        char *text = grown ? server_copy(line, (size_t)length) : NULL;
        if (grown) s->keys = grown;
        if (text) s->keys[s->key_count++] = (server_key){.text = text, .length = (size_t)length};
        else status = server_error(error, STRATA_MEMORY, NULL, "no memory for the API keys");
    }
    free(line);
    fclose(file);
    if (status == STRATA_OK && s->key_count == 0)
        status = server_error(error, STRATA_USAGE, "write one key per line", "%s: expected an API key, found none",
                              path);
    return status;
}

void server_policy_close(server *s)
{
    for (size_t i = 0; i < s->key_count; i++) free(s->keys[i].text);
    free(s->keys);
    s->keys = NULL;
    s->key_count = 0;
}

/* Takes the same time wherever the texts differ. */
static bool equals_key(const server_key *key, const char *text, size_t length)
{
    volatile unsigned char difference = key->length != length;
    for (size_t i = 0; i < length; i++)
        difference = (unsigned char)(difference | (text[i] ^ key->text[i % key->length]));
    return difference == 0;
}

static bool has_key(const server *s, const http_request *request)
{
    const char *text = http_header_of(request, "x-api-key"), *bearer = http_header_of(request, "Authorization");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) text = bearer + 7;
    if (s->key_count == 0) return true;
    if (!text) return false;
    text += strspn(text, " ");
    bool found = false;
    for (size_t i = 0; i < s->key_count; i++) found |= equals_key(&s->keys[i], text, strlen(text));
    return found;
}

/* ---- Host and Origin ------------------------------------------------------------------------------------------- */

/* The host's name or address without its port and brackets. */
static void host_name(const char *host, char *out, size_t size)
{
    size_t length = strcspn(host, ":");
    if (host[0] == '[') {
        host++;
        length = strcspn(host, "]");
    }
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), host);
}

static bool is_address(const char *name)
{
    struct in6_addr address;
    return inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
}

/* A page on another site can give its own name any address, but it cannot hide its name. */
static bool host_is_ours(const server *s, const char *host)
{
    char name[256];
    if (!host) return true; /* HTTP/1.0: no browser */
    host_name(host, name, sizeof name);
    size_t length = strlen(name);
    bool localhost = strcasecmp(name, "localhost") == 0 ||
                     (length > 10 && strcasecmp(name + length - 10, ".localhost") == 0);
    if (localhost || strcasecmp(name, s->options.host) == 0) return true;
    if (is_address(name)) return true;
    for (size_t i = 0; i < s->options.allow_host_count; i++) {
        const char *allowed = s->options.allow_hosts[i];
        if (strcasecmp(name, allowed) == 0 || strcmp(allowed, "*") == 0) return true;
    }
    return false;
}

static bool origin_is_same(const char *origin, const char *host)
{
    const char *start = strstr(origin, "://");
    return start && host && strcasecmp(start + 3, host) == 0;
}

/* Whether the page may use the server; *listed: it is named in the options, so it needs CORS headers. */
static bool origin_is_allowed(const server *s, const http_request *request, const char *origin, bool *listed)
{
    *listed = false;
    for (size_t i = 0; i < s->options.cors_origin_count; i++)
        if (strcmp(s->options.cors_origins[i], "*") == 0 || strcasecmp(s->options.cors_origins[i], origin) == 0)
            *listed = true;
    return *listed || origin_is_same(origin, http_header_of(request, "Host"));
}

/* ---- the check ------------------------------------------------------------------------------------------------- */

static bool refuse(server *s, http_request *request, const server_api *api, server_fault fault, const char *text)
{
    server_fail fail;
    server_refuse(&fail, fault, NULL, "%s", text);
    server_reply_fail(s, request, api, &fail);
    return false;
}

bool server_policy_check(server *s, http_request *request, const server_api *api, bool needs_key)
{
    const char *origin = http_header_of(request, "Origin");
    bool listed = false;
    if (!host_is_ours(s, http_header_of(request, "Host")))
        return refuse(s, request, api, FAULT_FORBIDDEN,
                      "this Host is not allowed: start the server with --allow-host to allow it");
    if (origin && !origin_is_allowed(s, request, origin, &listed))
        return refuse(s, request, api, FAULT_FORBIDDEN,
                      "this Origin is not allowed: start the server with --cors-origin to allow it");
    if (listed) {
        http_add_header(request, "Access-Control-Allow-Origin", origin);
        http_add_header(request, "Vary", "Origin");
    }
    if (strcmp(http_method(request), "OPTIONS") == 0) { /* a browser asks without a key */
        static const char headers[] =
            "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta, "
            "anthropic-dangerous-direct-browser-access, x-stainless-arch, x-stainless-async, "
            "x-stainless-helper-method, x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-poll-helper, "
            "x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";
        http_add_header(request, "Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS");
        http_add_header(request, "Access-Control-Allow-Headers", headers);
        http_add_header(request, "Access-Control-Max-Age", "86400");
        server_reply(request, 204, NULL, &(server_buf){0});
        return false;
    }
    if (needs_key && !has_key(s, request)) {
        http_add_header(request, "WWW-Authenticate", "Bearer");
        return refuse(s, request, api, FAULT_KEY,
                      "a valid API key is needed: send it as Authorization: Bearer KEY or x-api-key: KEY");
    }
    return true;
}
