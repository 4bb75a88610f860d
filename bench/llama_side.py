"""llama.cpp's half of bench/compare: prefill, and decode of one or several sequences in one batch, by its low-level
functions, f16 KV. Prints JSON."""
import json, sys, time

import llama_cpp as L


@L.llama_log_callback
def silent(level, text, data):
    pass


def decode(context, tokens):
    ids = (L.llama_token * len(tokens))(*tokens)  # kept alive: the batch points into it
    if L.llama_decode(context, L.llama_batch_get_one(ids, len(tokens))) != 0:
        sys.exit("llama_decode failed")


def decode_together(context, vocab, sequences, generate):
    """One token of each sequence a batch, all with logits."""
    L.llama_memory_clear(L.llama_get_memory(context), True)
    batch = L.llama_batch_init(sequences, 0, 1)
    batch.n_tokens = sequences
    start = time.perf_counter()
    for i in range(generate):
        for s in range(sequences):
            batch.token[s] = (i * 31 + s * 17) % vocab
            batch.pos[s] = i
            batch.n_seq_id[s] = 1
            batch.seq_id[s][0] = s
            batch.logits[s] = 1
        if L.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
    L.llama_synchronize(context)
    seconds = time.perf_counter() - start
    L.llama_batch_free(batch)
    return sequences * generate / seconds


def run(context, vocab, prompt, generate):
    L.llama_memory_clear(L.llama_get_memory(context), True)
    start = time.perf_counter()
    for i in range(0, prompt, 512):
        decode(context, [((i + j) * 7919 + 13) % vocab for j in range(min(512, prompt - i))])
    L.llama_synchronize(context)
    first = time.perf_counter() - start
    L.llama_memory_clear(L.llama_get_memory(context), True)  # decode starts from an empty context, as in strata bench
    start = time.perf_counter()
    for i in range(generate):
        decode(context, [i * 31 % vocab])
    L.llama_synchronize(context)
    return prompt / first, generate / (time.perf_counter() - start)


def main(path, threads, prompt, generate, parallel):
    L.llama_log_set(silent, None)
    L.llama_backend_init()
    model_options = L.llama_model_default_params()
    model_options.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), model_options)
    options = L.llama_context_default_params()
    most = max(parallel, default=1)
    options.n_ctx, options.n_batch, options.n_ubatch = prompt + most * (generate + 64), 512, 512
    options.n_seq_max = most
    options.kv_unified = True
    options.n_threads = options.n_threads_batch = threads
    options.type_k = options.type_v = 1  # f16
    context = L.llama_init_from_model(model, options)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    run(context, vocab, 32, 2)  # warm
    pp, tg = run(context, vocab, prompt, generate)
    result = {"pp": pp, "tg": tg}
    for count in parallel:
        decode_together(context, vocab, count, 4)  # warm
        result[f"tg@{count}"] = decode_together(context, vocab, count, generate)
    print(json.dumps(result))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), [int(x) for x in sys.argv[5].split(",") if x])
