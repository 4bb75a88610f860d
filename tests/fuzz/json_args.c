/* Fuzzes a template's arguments: any text, parsed as JSON and rendered by templates like those of real models. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "chat/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const sources[] = {
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' "
    "}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",

    "{%- set ns = namespace(system='', first=true) -%}{%- if messages[0].role == 'system' -%}"
    "{%- set ns.system = messages[0].content | trim -%}{%- set messages = messages[1:] -%}{%- endif -%}"
    "{%- if tools is defined and tools is not none and tools | length > 0 -%}# Tools\n"
    "{%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ tool.function.name | upper }}{%- endfor -%}{%- endif -%}"
    "{%- macro render(content) -%}{%- if content is string -%}{{ content }}{%- elif content is iterable and content is "
    "not mapping -%}"
    "{%- for part in content -%}{%- if part.type == 'text' or 'text' in part -%}{{ part.text }}{%- endif -%}{%- endfor "
    "-%}"
    "{%- elif content is none -%}{%- else -%}{{ content | string }}{%- endif -%}{%- endmacro -%}"
    "{%- for message in messages -%}{%- if message.role in ['user', 'assistant'] -%}"
    "<|{{ message.role }}|>{{ render(message.content) }}"
    "{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}"
    "{%- for key, value in call.function.arguments | items %}{{ key }}={{ value | tojson }}{%- endfor -%}{%- endfor "
    "-%}{%- endif -%}"
    "{%- if '</think>' in (message.content | string) -%}{{ (message.content | "
    "string).split('</think>')[-1].lstrip('\\n') }}{%- endif -%}"
    "{%- else -%}{{ raise_exception('unknown role ' ~ message.role) }}{%- endif -%}{%- endfor -%}",

    "{{ messages }}{{ messages | tojson(sort_keys=true) }}{{ (documents | default({})) | dictsort }}"
    "{{ messages | map(attribute='role') | list }}{{ messages | selectattr('content', 'string') | list | length }}{{ "
    "s[::-1] }}"
    "{{ s.title() }}{{ s.split() }}{{ s | indent }}{{ '%s %r' % (s, s) }}{{ n * 2 }}{{ n // 3 }}{{ x | round(2) }}{{ s "
    "== t }}{{ s < t }}",
};

enum { SOURCE_COUNT = sizeof sources / sizeof *sources };

static st_template *templates[SOURCE_COUNT];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *args = NULL;
    strata_error error;
    if (st_template_parse_args((const char *)data, size, &args, &error) != STRATA_OK) return 0;
    for (size_t i = 0; i < SOURCE_COUNT; i++) {
        st_rendering rendering = {0};
        if (!templates[i] && st_template_new(st_str_from(sources[i]), NULL, &templates[i], &error) != STRATA_OK)
            abort();
        if (st_template_render(templates[i], args, 1794700800, &rendering, &error) == STRATA_OK) {
            if (rendering.text.length != rendering.foreign.length) abort();
        }
        st_rendering_free(&rendering);
    }
    json_decref(args);
    return 0;
}
