#!/bin/bash
# The keys and commands of a chat: pasted blocks, several lines, Ctrl-C and Ctrl-Z, typing during an answer, long lines,
# commands with arguments, and a conversation longer than the context.
. "$(dirname "$0")/tap"
. tests/e2e/tmux
export HOME=$work/home
mkdir "$HOME"
paste() { # TEXT: as a terminal pastes it, between marks
    terminal set-buffer -b strata "$1"
    terminal paste-buffer -p -b strata -t "chat$number"
}
count_prompts() { screen | grep -cE '^strata: prompt: '; }
answered() { [ "$(count_prompts)" = "$1" ]; }
saved() { python3 -c 'import json, sys
messages = json.load(open(sys.argv[1]))["messages"]
sys.exit(not eval("(" + sys.argv[2] + ")"))' "$work/saved.json" "$1"; }
save() { # what the chat has written so far
    rm -f "$work/saved.json"
    type_line "/save $work/saved.json"
    eventually test -f "$work/saved.json" && eventually prompt_is_back
}

# --- several lines in one message
open_chat --temp 0 -n 4 --ignore-eos
eventually prompt_is_back
paste $'first line\nsecond line\n\tthird line\n'
check "a pasted block is not sent line by line" eventually shows "third line"
check "it waits for Enter" answered 0
key Enter
check "then it is one message" eventually answered 1
type_line '"""'
type_line 'alpha'
type_line ''
type_line 'beta"""'
check '""" encloses a message' eventually answered 2
type_line '"""one line"""'
check '""" in one line' eventually answered 3
eventually prompt_is_back
paste $'/usr is\na path'
key Enter
check "a pasted block is never a command" eventually answered 4
save
check "the messages are as they were given" saved '[m["content"] for m in messages if m["role"] == "user"] ==
    ["first line\nsecond line\n\tthird line", "alpha\n\nbeta", "one line", "/usr is\na path"]'
key Up
check "arrow-up recalls a command" eventually shows_times 2 "> /save $work/saved.json"
key Up
check "arrow-up recalls a pasted block as one line of history" eventually shows_times 2 "a path"
key C-c
check "Ctrl-C clears a half-typed line" eventually eval 'prompt_is_back && shows "^C"'
check "and the chat goes on" test ! -e "$work/code"
type_line '"""'
type_line 'not sent'
eventually eval 'screen | sed "/^$/d" | tail -3 | grep -q …'
key C-c
check "Ctrl-C drops a message of several lines" eventually prompt_is_back
sleep 2 # after this time a Ctrl-C was not meant for an answer
key C-c
check "Ctrl-C on an empty line leaves" eventually left_with 130
check "the history keeps a block as one line" eval 'grep -q $'"'"'^first line\vsecond line\v\tthird line$'"'"' "$XDG_STATE_HOME/strata/history"'

# --- commands
open_chat --temp 0 -n 4 --ignore-eos
eventually prompt_is_back
key Up Up Up Up Up
type_line ""
check "a block of the last chat can be sent again" eventually answered 1
type_line "/frobnicate now"
check "an unknown command is an error" eventually shows "unknown command /frobnicate: /help lists the commands"
type_line "/undo it"
check "an argument of a command without one is an error" eventually shows "/undo: expected no argument, found it"
check "and neither is a message" answered 1
type_line " /frobnicate now"
check "behind a space it is a message" eventually answered 2
type_line "/system Answer in French."
eventually prompt_is_back
type_line "/system"
check "/system shows it" eventually shows "system message: Answer in French."
save
check "/system sets the system message" saved 'messages[0] == {"role": "system", "content": "Answer in French."} and len(messages) == 5'
type_line "/clear"
eventually prompt_is_back
type_line "hello"
check "/clear starts again" eventually answered 3
save
check "with the system message" saved '[m["role"] for m in messages] == ["system", "user", "assistant"]'
cp "$work/saved.json" "$work/kept.json"
type_line "/regen"
check "/regen answers again" eventually answered 4
type_line "/?"
check "/? is /help" eventually shows "generate another answer to the last message (also /regen)"
type_line "/reset"
check "/reset says so" eventually shows "a new conversation begins"
type_line "/load $work/kept.json"
check "/load" eventually shows "loaded 2 messages, the last one: hello"
type_line "more"
check "and the conversation goes on" eventually answered 5
save
check "from where it was" saved '[m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]'
type_line "/load $work/none.json"
check "/load of a missing file is an error, and the chat goes on" eventually shows "error: $work/none.json: cannot open"
echo '{"messages": 1}' >"$work/wrong.json"
type_line "/load $work/wrong.json"
check "/load of another file is an error" eventually shows 'wrong.json: expected {"messages": [{"role"'
type_line "/save /proc/none/x"
check "/save where nothing can be written is an error" eventually shows "error: /proc/none/x"
type_line "/save ~/home.json"
check "/save in the home folder" eventually shows "messages in $HOME/home.json"
type_line "/load ~/home.json"
check "/load from there" eventually shows_times 2 "loaded "
type_line "/load"
check "/load without a file" eventually shows "/load: expected a file, found none"
check "the statistics are one short line" eval '! screen | grep -q "peak memory"'
type_line "/stats on"
eventually prompt_is_back
type_line "again"
check "/stats on: all of them" eventually shows "peak memory"
type_line "/stats off"
eventually prompt_is_back
before=$(count_prompts)
type_line "once more"
check "/stats off: none" eventually eval 'shows "> once more" && prompt_is_back && answered $before'
type_line "/stats"
check "/stats without a word" eventually shows "/stats: expected on (all statistics) or off, found none"
type_line "/bye"
check "/bye ends the chat" eventually left_with 0
open_chat
eventually prompt_is_back
type_line "/exit"
check "/exit ends the chat" eventually left_with 0
open_chat -q --temp 0 -n 4 --ignore-eos
check "--quiet: no greeting" eventually eval 'prompt_is_back && ! shows "strata:"'
type_line "/quit"
eventually left_with 0

# --- a long line, a long history, a narrow window
python3 -c 'print("word " * 9000 + "end")' >"$XDG_STATE_HOME/strata/history"
open_chat --temp 0 -n 4 --ignore-eos
eventually prompt_is_back
key Up
check "a line of 45,000 characters is recalled" eventually eval 'screen | sed "/^$/d" | tail -5 | grep -q "word end"'
terminal resize-window -t "chat$number" -x 37 -y 9
key X
check "and edited in a window that changes its size" eventually eval 'screen | sed "/^$/d" | tail -5 | grep -q "endX"'
terminal resize-window -t "chat$number" -x 100 -y 30
key Enter
check "and answered: it is too long" eventually shows "hint: use a shorter prompt"
type_line "hello"
check "the chat goes on" eventually answered 1
type_line "/quit"
check "and ends well" eventually left_with 0

# --- a full context: the oldest messages go
open_chat --temp 0 -n 4 --ignore-eos -c 256 -sys "Be brief."
eventually prompt_is_back
for turn in 1 2 3 4 5 6 7; do
    type_line "message number $turn, long enough to fill a context of 256 tokens soon"
    eventually answered $turn
    eventually prompt_is_back
done
check "a full context drops the oldest messages, with a note" shows "the context of 256 tokens is full: the oldest"
check "every message was answered" eval '! shows "error:"'
save
check "the system message and the last message stay" saved 'messages[0]["role"] == "system" and messages[1]["role"] == "user" and
    messages[-2]["content"].startswith("message number 7") and len(messages) < 12'
type_line "/quit"
eventually left_with 0

# --- typing during an answer; Ctrl-Z in an answer and at the prompt, from a shell with job control
lengthen "$model" "$work/long.gguf"
number=$((number + 1))
terminal -f /dev/null new-session -d -s "chat$number" -x 100 -y 30 -e TERM="$TERM" -e XDG_STATE_HOME="$XDG_STATE_HOME" \
    "bash --norc --noprofile -i"
eventually shows 'bash-'
type_line "$(printf '%q ' "$strata" run -m "$work/long.gguf" --temp 0 --ignore-eos -c 32768 --logit-bias 65+1000)"
eventually prompt_is_back
key "half"
eventually shows "> half"
key C-z
check "Ctrl-Z at the prompt stops the program" eventually shows "Stopped"
echoes() { terminal display -p -t "chat$number" "#{pane_tty}" | xargs -I{} stty -F {} -a | grep -q " $1"; }
type_line "fg"
check "fg shows the line again" eventually eval '[ "$(screen | grep -c "> half")" -ge 2 ]'
key "way"
check "which goes on" eventually shows "> halfway"
key Enter
answering() { screen | grep -qE 'A{20}'; }
check "and is answered" eventually answering
check "the terminal does not echo during an answer" eventually echoes -echo
terminal send-keys -t "chat$number" -l "typed ahead"
sleep 0.3
check "typing is not shown in the answer" eval '! screen | grep -q "Atyped"'
key C-z
check "Ctrl-Z stops an answer" eventually eval '[ "$(screen | grep -c Stopped)" -ge 2 ]'
check "the shell has its terminal" eventually echoes echo
type_line "fg"
check "fg goes on" eventually echoes -echo
key C-c
check "Ctrl-C stops the answer" eventually eval 'screen | sed "/^$/d" | tail -1 | grep -q "^>"'
key C-u
type_line "/quit"
check "the chat ends in the shell" eventually eval 'screen | sed "/^$/d" | tail -1 | grep -q "^bash-[^ ]* *$"'
finish
