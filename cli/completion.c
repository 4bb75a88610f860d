/* Completions for bash, zsh and fish, made from the option tables. */
#include <string.h>

#include "cli.h"

static bool operand_is_model(const cli_command *command)
{
    return command->operand && strcmp(command->operand, "FILE") == 0;
}

/* The names of all device profiles, separated by spaces. */
static void print_profiles(const json_t *devices)
{
    const json_t *rows = json_object_get(devices, "profiles");
    for (size_t i = 0; i < json_array_size(rows); i++)
        printf("%s%s", i ? " " : "", cli_text_of(json_array_get(rows, i), "name"));
}

/* All spellings of a command's options, separated by spaces. */
static void print_words(cli_command_id command)
{
    const char *blank = "";
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const cli_option *option = &cli_options[i];
        if (!cli_option_is_for(option, command)) continue;
        printf("%s--%s", blank, option->name);
        blank = " ";
        if (option->short_name) printf(" -%c", option->short_name);
        if (option->also) printf(" %s", option->also);
    }
}

static void print_command_names(void)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) printf("%s%s", i ? " " : "", cli_commands[i].name);
}

/* A bash case pattern: every spelling of an option with an argument; "command:option" because the same name may be a
 * flag elsewhere. */
static void print_bash_pattern(const char *command, const cli_option *option)
{
    printf("        %s:--%s", command, option->name);
    if (option->short_name) printf("|%s:-%c", command, option->short_name);
    for (const char *word = option->also; word && *word; word += strspn(word, " ")) {
        int length = (int)strcspn(word, " ");
        printf("|%s:%.*s", command, length, word);
        word += length;
    }
    printf(") ");
}

static void print_bash_cases(void)
{
    for (size_t c = 0; c < COMMAND_COUNT; c++)
        for (size_t i = 0; i < OPTION_COUNT; i++) {
            const cli_option *option = &cli_options[i];
            if (!option->argument || !cli_option_is_for(option, (cli_command_id)c)) continue;
            print_bash_pattern(cli_commands[c].name, option);
            if (option->type.kind == KIND_FILE) printf("COMPREPLY=($(compgen -f -- \"$current\")); ");
            if (option->type.kind == KIND_MODEL) printf("_strata_models; ");
            if (option->type.kind == KIND_PROFILE) printf("_strata_profiles; ");
            if (option->type.kind == KIND_WORD)
                printf("COMPREPLY=($(compgen -W '%s' -- \"$current\")); ", option->type.words);
            printf("return ;;\n");
        }
}

static void print_bash(const json_t *devices)
{
    printf("# bash completion for strata\n"
           "_strata_models() {\n"
           "    COMPREPLY=($(compgen -f -X '!*.gguf' -- \"$current\") $(compgen -d -- \"$current\"))\n"
           "}\n"
           "_strata_profiles() {\n"
           "    COMPREPLY=($(compgen -W '");
    print_profiles(devices);
    printf("' -- \"$current\") $(compgen -f -X '!*.json' -- \"$current\"))\n"
           "}\n"
           "_strata() {\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W '");
    print_command_names();
    printf(" --help --version' -- \"$current\"))\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]}:$previous in\n");
    print_bash_cases();
    printf("    esac\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        printf("        %s) words='", cli_commands[i].name);
        print_words((cli_command_id)i);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    case ${COMP_WORDS[1]}:$current in\n"
           "        *:-*) ;;\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (operand_is_model(&cli_commands[i]))
            printf("        %s:*) _strata_models; return ;;\n", cli_commands[i].name);
    printf("        replay:*) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n");
    printf("        help:*) words='");
    print_command_names();
    printf("' ;;\n"
           "    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
           "}\n"
           "complete -o filenames -F _strata strata\n");
}

/* Text inside single quotes and square brackets of a zsh _arguments specification. */
static void print_zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'') fputs("'\\''", stdout);
        else if (strchr("[]:\\", *text)) printf("\\%c", *text);
        else putchar(*text);
    }
}

/* The spellings of an option: '(-m --model)'{--model=,-m}, or '*'{…} if it repeats; one alone needs no braces. */
static void print_zsh_spellings(const cli_option *option)
{
    const char *equals = option->argument ? "=" : "", *also = option->also ? option->also : "";
    if (!option->short_name && !*also) {
        printf("%s--%s%s", option->type.repeats ? "'*'" : "", option->name, equals);
        return;
    }
    if (option->type.repeats) {
        printf("'*'");
    } else {
        printf("'(");
        if (option->short_name) printf("-%c ", option->short_name);
        printf("--%s%s%s)'", option->name, *also ? " " : "", also);
    }
    printf("{--%s%s", option->name, equals);
    if (option->short_name) printf(",-%c", option->short_name);
    while (*also) {
        int length = (int)strcspn(also, " ");
        printf(",%.*s%s", length, also, also[1] == '-' ? equals : "");
        also += length;
        also += strspn(also, " ");
    }
    putchar('}');
}

static void print_zsh_option(const cli_option *option)
{
    printf("                ");
    print_zsh_spellings(option);
    printf("'[");
    print_zsh_text(option->help);
    putchar(']');
    if (option->argument) {
        putchar(':');
        print_zsh_text(option->argument);
        putchar(':');
        if (option->type.kind == KIND_FILE) printf("_files");
        if (option->type.kind == KIND_MODEL) printf("_strata_models");
        if (option->type.kind == KIND_PROFILE) printf("_strata_profiles");
        if (option->type.kind == KIND_WORD) printf("(%s)", option->type.words);
    }
    printf("' \\\n");
}

static void print_zsh(const json_t *devices)
{
    printf("#compdef strata\n"
           "_strata_models() { _files -g '*.gguf' }\n"
           "_strata_profiles() { _alternative 'profiles:profile:(");
    print_profiles(devices);
    printf(")' 'files:file:_files -g \"*.json\"' }\n"
           "_strata() {\n"
           "    local line state\n"
           "    _arguments -C '1: :->command' '*:: :->words'\n"
           "    case $state in\n"
           "        command)\n"
           "            local -a commands=(\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        printf("                '%s:", cli_commands[i].name);
        print_zsh_text(cli_commands[i].summary);
        printf("'\n");
    }
    printf("            )\n"
           "            _describe command commands ;;\n"
           "        words)\n"
           "            case $line[1] in\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        printf("            %s) _arguments \\\n", cli_commands[i].name);
        for (size_t j = 0; j < OPTION_COUNT; j++)
            if (cli_option_is_for(&cli_options[j], (cli_command_id)i)) print_zsh_option(&cli_options[j]);
        if (operand_is_model(&cli_commands[i])) printf("                '1:model:_strata_models' ;;\n");
        else if (i == COMMAND_REPLAY) printf("                '1:trace:_files' ;;\n");
        else if (i == COMMAND_HELP) {
            printf("                '1:command:(");
            print_command_names();
            printf(")' ;;\n");
        } else printf("                ;;\n");
    }
    printf("            esac ;;\n"
           "    esac\n"
           "}\n"
           "_strata \"$@\"\n");
}

/* Inside single quotes fish has only the escapes \' and \\. */
static void print_fish_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') putchar('\\');
        putchar(*text);
    }
}

static void print_fish_option(const cli_command *command, const cli_option *option, const json_t *devices)
{
    printf("complete -c strata -n '__fish_seen_subcommand_from %s' -l %s", command->name, option->name);
    if (option->short_name) printf(" -s %c", option->short_name);
    for (const char *word = option->also; word && *word; word += strspn(word, " ")) {
        int length = (int)strcspn(word, " ");
        if (word[1] == '-') printf(" -l %.*s", length - 2, word + 2);
        else printf(" -o %.*s", length - 1, word + 1);
        word += length;
    }
    if (option->argument) printf(" -r");
    if (option->type.kind == KIND_FILE) printf(" -F");
    if (option->type.kind == KIND_MODEL) printf(" -a '(__fish_complete_suffix .gguf)'");
    if (option->type.kind == KIND_PROFILE) {
        printf(" -a '");
        print_profiles(devices);
        printf(" (__fish_complete_suffix .json)'");
    }
    if (option->type.kind == KIND_WORD) printf(" -a '%s'", option->type.words);
    printf(" -d '");
    print_fish_text(option->help);
    printf("'\n");
}

static void print_fish(const json_t *devices)
{
    printf("# fish completion for strata\ncomplete -c strata -f\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const cli_command *command = &cli_commands[i];
        printf("complete -c strata -n __fish_use_subcommand -a %s -d '", command->name);
        print_fish_text(command->summary);
        printf("'\n");
        if (operand_is_model(command))
            printf("complete -c strata -n '__fish_seen_subcommand_from %s' -a '(__fish_complete_suffix .gguf)'\n",
                   command->name);
        if (i == COMMAND_REPLAY) printf("complete -c strata -n '__fish_seen_subcommand_from %s' -F\n", command->name);
        for (size_t j = 0; j < OPTION_COUNT; j++)
            if (cli_option_is_for(&cli_options[j], (cli_command_id)i))
                print_fish_option(command, &cli_options[j], devices);
    }
}

/* The devices without looking for a GPU: the names of the profiles alone are needed. */
static strata_status list_devices(json_t **out, strata_error *error)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    char *text = NULL;
    placement.device = "cpu";
    strata_status status = strata_devices(&placement, false, &text, error);
    if (status == STRATA_OK) status = cli_parse_json("the devices", text, strlen(text), out, error);
    strata_free(text);
    return status;
}

strata_status cli_print_completion(const char *shell, strata_error *error)
{
    static const struct {
        const char *shell;
        void (*print)(const json_t *devices);
    } rows[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *devices = NULL;
        if (strcmp(shell, rows[i].shell) != 0) continue;
        strata_status status = list_devices(&devices, error);
        if (status == STRATA_OK) rows[i].print(devices);
        json_decref(devices);
        return status;
    }
    return cli_fail(error, STRATA_USAGE, NULL, "--print-completion: expected bash, zsh or fish, found \"%s\"", shell);
}
