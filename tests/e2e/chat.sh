#!/bin/bash
# strata run on a terminal: a chat with history, interrupts, commands and a window that changes its size.
. "$(dirname "$0")/tap"
. tests/e2e/tmux

# --- two turns, history, commands
open_chat --temp 0 -n 8 --ignore-eos -sys "Be brief."
check "the chat opens" eventually shows "/help lists commands"
check "it prompts" eventually prompt_is_back
type_line "first message"
check "it answers, and prints the speed" eventually shows_times 1 "answer: 8 tokens at"
check "it prompts again" eventually prompt_is_back
first=$(screen | sed -nE 's/.*prompt: ([0-9]+) tokens? at.*/\1/p' | tail -1)
type_line "second message"
check "a second turn" eventually shows_times 2 "answer: 8 tokens at"
second=$(screen | sed -nE 's/.*prompt: ([0-9]+) tokens? at.*/\1/p' | tail -1)
check "the first prompt contains the system message" test "$first" -gt 30
check "the second turn runs the new tokens alone" test "$second" -lt 60
eventually prompt_is_back
key Up
check "arrow-up recalls the last line" eventually shows_times 2 "> second message"
key Up
check "and the one before" eventually shows_times 2 "> first message"
key C-u
check "the line can be edited" eventually prompt_is_back
type_line "/help"
check "/help" eventually shows "start a new conversation"
type_line "/nonsense"
check "an unknown command" eventually shows "unknown command /nonsense"
type_line "/usr/bin is a path"
check "a slash in a message is a message" eventually shows_times 3 "answer: 8 tokens at"
type_line "/reset"
eventually prompt_is_back
type_line "first message"
check "after /reset it answers" eventually shows_times 4 "answer: 8 tokens at"
eventually prompt_is_back
type_line 'one \'
type_line "two"
check "a backslash continues the message" eventually shows_times 5 "answer: 8 tokens at"
eventually prompt_is_back
type_line "grüße 日本"
check "a message that is not ASCII" eventually shows_times 6 "answer: 8 tokens at"
check "and is shown unchanged" shows "> grüße 日本"
eventually prompt_is_back
terminal resize-window -t "chat$number" -x 40 -y 12
key "a" "b"
terminal resize-window -t "chat$number" -x 120 -y 40
key "c"
check "resizing the window does not end the line" eventually shows "abc"
key C-u
type_line "/quit"
check "/quit ends the chat with exit code 0" eventually left_with 0
check "the history is kept" grep -qx "second message" "$XDG_STATE_HOME/strata/history"
check "only its owner can read it" test "$(stat -c %a "$XDG_STATE_HOME/strata/history")" = 600

# --- one random stream over the turns; control tokens are neither shown nor kept
answer_to_first() { screen | awk '/^> first message/ { n++; next } /^strata: prompt:/ { on = 0 } { if (n == '"$1"') print }' | sed '/prompt:/,$d'; }
export XDG_STATE_HOME=$work/other
open_chat --seed 7 --temp 1.5 --top-k 0 -n 12 --ignore-eos
eventually prompt_is_back
for turn in 1 2; do
    type_line "first message"
    check "with a seed: answer $turn" eventually shows_times $turn "answer: 12 tokens at"
    eventually prompt_is_back
    type_line "/reset"
    eventually prompt_is_back
done
check "the second answer draws other random numbers" test "$(answer_to_first 1)" != "$(answer_to_first 2)"
type_line "/quit"
eventually left_with 0
for special in "" --special; do
    open_chat --temp 0 -n 8 --logit-bias 287+1000 $special
    eventually prompt_is_back
    for turn in 1 2; do
        type_line "first message"
        eventually shows_times $turn "answer: 8 tokens at"
        eventually prompt_is_back
    done
    screen >"$work/screen$special"
    sed -nE 's/.*prompt: ([0-9]+) tokens? at.*/\1/p' "$work/screen$special" | tail -1 >"$work/tokens$special"
    type_line "/quit"
    eventually left_with 0
done
check "control tokens are not shown in a chat" eval '! grep -q "im_start" "$work/screen"'
check "but with --special" grep -q "<|im_start|><|im_start|>" "$work/screen--special"
check "and only then kept in the history" test "$(cat "$work/tokens--special")" -gt $(($(cat "$work/tokens") + 40))

# --- branches: /undo, /retry, /fork, /branches, /switch, on layers that keep everything, windows and recurrent state
# answer_to TEXT N: the answer to the N-th message that is TEXT.
answer_to() { screen | awk -v text="> $1" -v n="$2" '/^strata: / || /^> / { on = 0 } $0 == text { on = ++seen == n; next } on'; }
# branch N: its line of the last list of /branches, without the last message: the mark, number, messages and tokens.
branch() { screen | awk '/^  branch  messages/ { n = 0; next } /^[* ] +[0-9]+ +[0-9]+ +[0-9]+  / { line[++n] = $0 } END { print line['"$1"'] }'; }
branch_is() { branch "$1" | grep -qE "^$2 +$1 +$3 +[0-9]+  $4\$"; }
tokens_of() { branch "$1" | sed -E 's/^[* ] +[0-9]+ +[0-9]+ +([0-9]+) .*/\1/'; }
answers=0
# say TEXT: a message, until its answer is complete.
say() {
    answers=$((answers + 1))
    type_line "$1"
    eventually shows_times $answers "answer: 6 tokens at" && eventually prompt_is_back
}
# give COMMAND TEXT: a command of the chat, which prints TEXT.
give() {
    type_line "$1"
    eventually shows "$2" && eventually prompt_is_back
}
lists=0
list_branches() {
    lists=$((lists + 1))
    type_line /branches
    eventually shows_times $lists "  branch  messages    tokens  last message" && eventually prompt_is_back
}
for name in llama gemma4-dense qwen35; do
    model=$kit/$name.gguf answers=0 lists=0
    open_chat --temp 0 -n 6 --ignore-eos --cpu ref -sys "Be brief."
    eventually prompt_is_back
    check "$name: /undo without a message" give /undo "/undo: there is no message to remove"
    check "$name: /retry without a message" give /retry "/retry: there is no message to answer"
    check "$name: /switch without a number" give /switch "/switch: expected a branch from 1 to 1, found none"
    check "$name: /switch to a branch that does not exist" give "/switch 2" "/switch: expected a branch from 1 to 1, found 2"
    check "$name: an answer" say "first message"
    list_branches
    check "$name: /branches lists the one branch" branch_is 1 '\*' 2 "first message"
    tokens=$(tokens_of 1)
    check "$name: a second answer" say "second message"
    check "$name: /undo names the message" give /undo "removed the last message and its answer: second message"
    list_branches
    check "$name: /undo removes the message and its answer" eval 'branch_is 1 "\*" 2 "first message" && [ "$(tokens_of 1)" = "$tokens" ]'
    check "$name: the message again" say "second message"
    check "$name: after /undo the same message has the same answer" test "$(answer_to "second message" 1)" = "$(answer_to "second message" 2)"
    check "$name: /fork" give /fork "branch 2 begins as a copy of branch 1; /switch 1 goes back"
    check "$name: a message in the new branch" say "only in branch two, and long enough that the list has to cut it"
    check "$name: another" say "third message"
    list_branches
    check "$name: branch 1 stays as it was" branch_is 1 ' ' 4 "second message"
    check "$name: branch 2 is the current one" branch_is 2 '\*' 8 "third message"
    check "$name: /undo in branch 2" give /undo "removed the last message and its answer: third message"
    list_branches
    check "$name: a long message is shortened" branch_is 2 '\*' 6 "only in branch two, and long enough that the lis…"
    check "$name: /switch 1" give "/switch 1  " "branch 1, last message: second message"
    check "$name: branch 1 answers" say "third message"
    check "$name: /switch 2" give "/switch 2" "branch 2, last message: only in"
    give /undo "and its answer: only in branch two"
    check "$name: branch 2 answers" say "third message"
    reused=$(screen | sed -nE 's/.*prompt: [0-9]+ tokens? at [0-9.]+ t\/s, ([0-9]+) reused.*/\1/p' | tail -1)
    check "$name: and reuses at least the first page after /undo" test "${reused:-0}" -ge 64
    check "$name: branches with the same messages answer the same" test "$(answer_to "third message" 2)" = "$(answer_to "third message" 3)"
    type_line "/quit"
    check "$name: the chat ends well" eventually left_with 0
done
model=$kit/llama.gguf answers=0
open_chat --seed 7 --temp 1.5 --top-k 0 -n 6 --ignore-eos
eventually prompt_is_back
say "first message"
for turn in 1 2; do
    answers=$((answers + 1))
    type_line /retry
    check "/retry answers again" eventually shows_times $answers "answer: 6 tokens at"
    eventually prompt_is_back
done
check "/retry reuses the stored prompt" eval '[ "$(screen | grep -cE "prompt: 1 token at [0-9.]+ t/s, [0-9]+ reused, first token")" = 2 ]'
retried() { screen | awk -v n="$1" '/^strata: / || /^> / { on = 0 } /^> \/retry/ { on = ++seen == n; next } on'; }
check "/retry draws other random numbers" eval '[ "$(retried 1)" != "$(retried 2)" ] && [ "$(retried 1)" != "$(answer_to "first message" 1)" ]'
type_line "/help"
check "/help lists the commands" eventually shows "continue in branch N"
type_line "/quit"
check "the chat ends well" eventually left_with 0

export XDG_STATE_HOME=$work/state
# --- interrupts: long answers, of a model with a long context
lengthen "$model" "$work/long.gguf"
model=$work/long.gguf
open_chat --temp 0 --ignore-eos -c 32768 --logit-bias 65+1000
eventually prompt_is_back
key Up Up # past /quit
check "the history of the last chat is kept" eventually shows "> grüße 日本"
key C-u
eventually prompt_is_back
type_line "go on"
answers_begun() { [ "$(screen | grep -cE '^A{3,}')" = "$1" ]; }
check "text streams as it comes" eventually answers_begun 1
key C-c
check "Ctrl-C stops an answer, and the prompt is back" eventually prompt_is_back
check "and the chat goes on" test ! -e "$work/code"
type_line "and now"
check "a second answer begins" eventually answers_begun 2
key C-c
check "the conversation goes on" eventually shows_times 2 "answer: "
eventually prompt_is_back
key C-c
check "Ctrl-C at an empty prompt may be late for an answer: the conversation is not lost" \
    eventually eval 'shows "Ctrl-C again, Ctrl-D or /quit ends the chat" && prompt_is_back'
check "and the chat goes on" test ! -e "$work/code"
key C-c
check "the second one exits with code 130" eventually left_with 130
check "the terminal is restored" eventually eval 'terminal display -p -t "chat$number" "#{pane_tty}" | xargs -I{} stty -F {} -a | grep -q " icanon"'

open_chat --temp 0 -c 65536 --cpu ref -t 1
eventually prompt_is_back
printf 'word %.0s' $(seq 8000) >"$work/words"
terminal load-buffer -b long "$work/words"
terminal paste-buffer -p -b long -t "chat$number"
key Enter
eventually eval 'screen | grep -qE "^prompt +[0-9]+ %"'
key C-c
check "Ctrl-C stops a prompt" eventually eval 'shows "stopped before the first token" && shows "the message was dropped" && prompt_is_back'
check "without statistics of nothing" eval '! shows "answer: 0 tokens"'
type_line '"""'
eventually eval 'screen | sed "/^$/d" | tail -1 | grep -q …'
key C-c
check "Ctrl-C leaves a message of several lines that has none yet" eventually prompt_is_back
check "but not the chat" test ! -e "$work/code"
key C-c
check "a chat without messages ends at the first Ctrl-C" eventually left_with 130

# --- end of input, a dumb terminal, a home folder that cannot be written
open_chat --temp 0 -n 4
eventually prompt_is_back
key C-d
check "Ctrl-D ends the chat with exit code 0" eventually left_with 0
export TERM=dumb XDG_STATE_HOME=/proc/none
open_chat --temp 0 -n 4 --ignore-eos
eventually prompt_is_back
type_line "hello"
check "a home that cannot be written is not an error" eventually shows "answer: 4 tokens"
type_line "/quit"
check "and the chat ends well" eventually left_with 0
export TERM=screen
open_chat --raw
check "--raw without a prompt is wrong usage" eventually left_with 2
open_chat -p hello -n 3 --ignore-eos
check "-p on a terminal answers once" eventually left_with 0
finish
