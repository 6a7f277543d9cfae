package slurm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// freeText matches the keys of scontrol show node with text that users typed. They come last, in
// this order (22.05, 24.11 and 26.05). Text after the first of them can look like any
// key.
var freeText = checks.Lazily(` (Reason|Comment|Extra)=`)

var (
	stateKey = checks.Lazily(` State=(\S+)`)
	// stamp matches the text that scontrol appends to the first line of a reason, and what follows: further
	// lines of the reason, or a key. A person who copies a reason from scontrol sets one with a stamp in it.
	stamp = checks.Lazily(` \[[^\] ]+@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\]( {8}| [A-Z]\w*=| *$)`)
)

// lineIndent is how scontrol -o begins a further line of a reason.
const lineIndent = "        "

// parseShowNode parses one line of scontrol -o show node. The order of keys differs between
// releases, so they are found by name. The state counts only before any free text, and the reason
// only if it is the first free text.
func parseShowNode(out []byte) (NodeInfo, error) {
	line := firstLine(out)
	if !strings.HasPrefix(line, "NodeName=") {
		return NodeInfo{}, fmt.Errorf("parse node %q: want NodeName= first", cut(printable(line), 80))
	}
	keys, text := line, ""
	if at := freeText().FindStringIndex(line); at != nil {
		keys, text = line[:at[0]], line[at[0]:]
	}
	state := stateKey().FindStringSubmatch(keys)
	if state == nil {
		return NodeInfo{}, errors.New("parse node: no State= before the free text")
	}
	node := NodeInfo{State: ParseState(state[1])}
	if reason, ok := strings.CutPrefix(text, " Reason="); ok {
		if at := stamp().FindStringSubmatchIndex(reason); at != nil {
			node.Foreign = reason[at[2]:at[3]] == lineIndent
			reason = reason[:at[0]]
		} else if at := freeText().FindStringIndex(reason); at != nil {
			reason = reason[:at[0]]
		}
		node.Reason = strings.TrimSpace(reason)
	}
	return node, nil
}

// parseColumns parses the answer to [Settings.nodeArgv]: columns of fixed width. It also accepts the
// answer of a site's own sinfo that prints LBNL NHC's format.
func parseColumns(out []byte) (NodeInfo, error) {
	line := firstLine(out)
	if len(line) < stateColumn+authorColumn {
		node, err := parseSinfo(out)
		if err == nil && node.State.Base == "" {
			err = fmt.Errorf("parse node %q: want columns, or a state and a reason", cut(printable(line), 80))
		}
		return node, err
	}
	node := NodeInfo{
		State:  ParseState(strings.ToUpper(strings.TrimSpace(line[:stateColumn]))),
		Author: strings.TrimSpace(line[stateColumn:][:authorColumn]),
		Reason: strings.TrimSpace(line[stateColumn+authorColumn:]),
		// Another partition has the same line.
		Foreign: hasOtherLine(out, func(further string) bool { return strings.TrimSpace(further) == strings.TrimSpace(line) }),
	}
	if node.Author == "Unknown" {
		node.Author = ""
	}
	return node, nil
}

// hasOtherLine reports whether an answer has a line that is not one of the node: a further line of a reason.
// Only a person sets such a reason.
func hasOtherLine(out []byte, isNode func(line string) bool) bool {
	for line := range strings.Lines(string(out)) {
		if strings.TrimSpace(line) != "" && !isNode(line) {
			return true
		}
	}
	return false
}

// parseSinfo parses the first line of sinfo -o '%t %E'. A node in two partitions has a line for
// each, with the same state.
func parseSinfo(out []byte) (NodeInfo, error) {
	word, reason, _ := strings.Cut(strings.TrimSpace(firstLine(out)), " ")
	if word == "" {
		return NodeInfo{}, errors.New("parse node: sinfo knows no such node")
	}
	isNode := func(further string) bool {
		state, _, _ := strings.Cut(strings.TrimSpace(further), " ")
		return state == word
	}
	return NodeInfo{State: ParseState(word), Reason: strings.TrimSpace(reason), Foreign: hasOtherLine(out, isNode)}, nil
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
