package slurm

import (
	"cmp"
	"strings"
)

// TORQUE/PBS and LSF, as LBNL NHC's helpers treat them: a foreign note is set
// again in place of ours where Slurm's would be left alone.

// pbsNode reads pbsnodes -n -l: the node, its state, and its note.
func (h *helper) pbsNode() (state string, n note) {
	words := strings.Fields(string(h.command(nil,
		cmp.Or(h.env("PBSNODES"), "pbsnodes"), cmp.Or(h.env("PBSNODES_LIST_ARGS"), "-n -l all"))))
	if len(words) < 2 {
		return "", note{}
	}
	return words[1], noteOf(words[2:])
}

func (h *helper) pbsOffline(message string) int {
	state, n := h.pbsNode()
	out := strings.Contains(state, "offline")
	if out && n.leader == "" && !h.took {
		h.say("Not offlining %s:  Already offline with no note set.", h.node)
		return 0
	}
	reason := Reason(message)
	if (out || strings.Contains(state, "down") || strings.Contains(state, "unknown")) && n.leader != "" && n.leader != Prefix {
		reason = n.String()
	}
	h.say("Marking %s %s offline:  %s", state, h.node, reason)
	return h.change([]string{reason}, cmp.Or(h.env("PBSNODES"), "pbsnodes"), cmp.Or(h.env("PBSNODES_OFFLINE_ARGS"), "-o -N"))
}

func (h *helper) pbsOnline() int {
	state, n := h.pbsNode()
	switch {
	case !strings.Contains(state, "offline"):
		h.say("Skipping %s node %s (%s)", state, h.node, n)
	case n.leader == "" && !h.took:
		h.say("Not onlining %s:  No note set.", h.node)
	case n.leader != "" && n.leader != Prefix:
		h.say("Not onlining %s:  Offline for non-NHC reason (%s)", h.node, n)
	default:
		h.say("Marking %s online and clearing note (%s)", h.node, n)
		return h.change([]string{""}, cmp.Or(h.env("PBSNODES"), "pbsnodes"), cmp.Or(h.env("PBSNODES_ONLINE_ARGS"), "-c -N"))
	}
	return 0
}

// lsfNode reads bhosts -l: the first word below STATUS, and the comment of the
// administrator in double quotes.
func (h *helper) lsfNode() (state string, n note) {
	below := false
	for line := range strings.Lines(string(h.command([]string{"-l"}, cmp.Or(h.env("LSF_BHOSTS"), "bhosts")))) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case below:
			state, below = words[0], false
		case words[0] == "STATUS":
			below = true
		case len(words) > 3 && words[0] == "ADMIN" && words[2] == "COMMENT:":
			comment := strings.Join(words[3:], " ")
			comment = strings.TrimSuffix(strings.TrimPrefix(comment, `"`), `"`)
			return state, noteOf(strings.Fields(comment))
		}
	}
	return state, note{}
}

func (h *helper) lsfOffline(message string) int {
	state, n := h.lsfNode()
	switch {
	case state != "ok" && !strings.HasPrefix(state, "closed"):
		return 0
	case state == "closed_Adm" && n.leader == "" && !h.took:
		h.say("Not offlining %s:  Already offline with no note set.", h.node)
		return 0
	}
	reason := Reason(message)
	if n.leader != "" && n.leader != Prefix {
		reason = n.String()
	}
	h.say("Marking %s %s offline:  %s", state, h.node, reason)
	return h.change([]string{reason}, cmp.Or(h.env("LSF_BADMIN"), "badmin"), cmp.Or(h.env("LSF_OFFLINE_ARGS"), "hclose -C"))
}

func (h *helper) lsfOnline() int {
	state, n := h.lsfNode()
	switch {
	case !strings.HasPrefix(state, "closed"):
		h.say("Skipping %s node %s (%s)", state, h.node, n)
	case n.leader == "" && !h.took:
		h.say("Not onlining %s:  No note set.", h.node)
	case n.leader != "" && n.leader != Prefix:
		h.say("Not onlining %s:  Down for non-NHC reason (%s)", h.node, n)
	default:
		h.say("Marking %s online and clearing note (%s)", h.node, n)
		return h.change(nil, cmp.Or(h.env("LSF_BADMIN"), "badmin"), cmp.Or(h.env("LSF_ONLINE_ARGS"), "hopen"))
	}
	return 0
}

// command queries: the pieces split into words, the last words, the node.
func (h *helper) command(last []string, pieces ...string) []byte {
	argv, err := argv(pieces, append(last, h.node)...)
	if err != nil {
		h.complain(err)
		return nil
	}
	return h.query(argv)
}

// change marks: the pieces split into words, the last words, the node.
func (h *helper) change(last []string, pieces ...string) int {
	argv, err := argv(pieces, append(last, h.node)...)
	if err != nil {
		h.complain(err)
		return 1
	}
	return h.mark(argv)
}
