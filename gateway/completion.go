package gateway

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"mvdan.cc/sh/v3/syntax"
)

// CompleteVerbs are what shells ask when TAB is typed.
type CompleteVerbs struct {
	Complete CompleteVerb `cmd:"" hidden:"" help:"Print what the last of some words could become, for completion scripts. Example: complete -- info w"`
}

// A CompleteVerb has the words of a command line, of which the last is begun.
type CompleteVerb struct {
	Words []string `arg:"" optional:"" help:"Words, behind --."`
}

func (v *CompleteVerb) Run(c *verbCall) error {
	ctx, cancel := context.WithTimeout(c.ctx, completeTimeout)
	defer cancel()
	return writeLines(c.stdout, c.login.Complete(ctx, v.Words))
}

func writeLines(w io.Writer, lines []string) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}

// CompleteHere is the verb on a machine that is not the gateway: what the grammar
// says of words is known there. Only for names the gateway host is asked, if it
// answers at once.
func CompleteHere(w io.Writer, root *kong.Node, words []string, host string) error {
	names := false
	found := Completions(root, words, func(*kong.Node) bool { return true }, func(string) []string {
		names = true
		return nil
	})
	if names && host != "" {
		found = append(found, askCompletions(host, words)...)
	}
	slices.Sort(found)
	return writeLines(w, slices.Compact(found))
}

// askCompletions asks the gateway; nothing if that does not work without a question.
func askCompletions(host string, words []string) []string {
	args, host := sshTo(host)
	line := "complete --"
	for _, word := range words {
		quoted, err := syntax.Quote(word, syntax.LangPOSIX)
		if err != nil {
			return nil
		}
		line += " " + quoted
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	args = append(args, "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", "--", "gate@"+host, line)
	out, err := exec.CommandContext(ctx, "ssh", args...).Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

// A Shell says which shell a completion script is for.
type Shell struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// A completionVerb is that of the lobby: its users may have nothing but ssh.
type completionVerb struct {
	JSON
	Shell
	Command string `default:"gate" help:"What to call the command (${default})."`
	Host    string `default:"gate" help:"The lobby as your ssh knows it (${default})."`
}

func (v *completionVerb) Run(c *verbCall) error {
	for _, s := range []string{v.Command, v.Host} {
		if !plainWord.MatchString(s) || strings.HasPrefix(s, "-") {
			return &problem{kind: usage, sentence: fmt.Sprintf("%.80q is not a word that goes into a script", s)}
		}
	}
	define := map[string]string{
		"bash": "CMD() { ssh HOST \"$@\"; }\nCMD_ask() { ssh -o BatchMode=yes -o ConnectTimeout=2 HOST \"complete -- $(printf '%q ' \"$@\")\"; }\n",
		"zsh":  "CMD() { ssh HOST \"$@\"; }\nCMD_ask() { ssh -o BatchMode=yes -o ConnectTimeout=2 HOST \"complete -- ${(j: :)${(@qq)@}}\"; }\n",
		"fish": "function CMD\n    ssh HOST $argv\nend\nfunction CMD_ask\n    ssh -o BatchMode=yes -o ConnectTimeout=2 HOST \"complete -- \"(string escape -- $argv | string join ' ')\nend\n",
	}[v.Shell.Shell]
	script := strings.ReplaceAll(define, "HOST", v.Host) + completionScripts[v.Shell.Shell]
	return c.print(v.JSON.JSON, map[string]string{"script": strings.ReplaceAll(script, "CMD", v.Command)}, strings.ReplaceAll(script, "CMD", v.Command))
}

// Script is what completes the command sandgate in the shell.
func (s Shell) Script() string {
	define := "CMD_ask() { command sandgate complete -- \"$@\"; }\n"
	if s.Shell == "fish" {
		define = "function CMD_ask\n    command sandgate complete -- $argv\nend\n"
	}
	return strings.ReplaceAll(define+completionScripts[s.Shell], "CMD", "sandgate")
}

// completionScripts complete the command CMD with what CMD_ask prints for the words
// after it.
var completionScripts = map[string]string{
	"bash": `_CMD() {
	# The words as they are typed: bash makes several of one with : or =.
	local line=${COMP_LINE:0:COMP_POINT} words cur head word
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=('')
	cur=${words[${#words[@]}-1]}
	head=${cur%"${cur##*[:=]}"}
	COMPREPLY=()
	while IFS= read -r word; do
		COMPREPLY+=("${word#"$head"}")
	done < <(CMD_ask "${words[@]:1}" 2>/dev/null </dev/null)
	if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:=] ]]; then
		compopt -o nospace 2>/dev/null
	fi
}
complete -F _CMD CMD
`,
	"zsh": `_CMD() {
	local -a found
	found=(${(f)"$(CMD_ask "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null </dev/null)"})
	compadd -S '' -- ${(M)found:#*[:=]}
	compadd -- ${found:#*[:=]}
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _CMD CMD
`,
	"fish": `function __CMD_complete
    set -l words (commandline -opc) (commandline -ct)
    CMD_ask $words[2..-1] 2>/dev/null </dev/null
end
complete -c CMD -f -a '(__CMD_complete)'
`,
}
