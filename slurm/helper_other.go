package slurm

import (
	"cmp"
	"strings"
)

// TORQUE/PBS and LSF, as LBNL NHC's helpers handle them: a foreign note is replaced by ours; on
// Slurm it would stay.

// readPBSNode parses pbsnodes -n -l: the node, its state, and its note.
func (h *helper) readPBSNode() (state string, n note) {
	words := strings.Fields(string(h.command(nil,
		cmp.Or(h.env("PBSNODES"), "pbsnodes"), cmp.Or(h.env("PBSNODES_LIST_ARGS"), "-n -l all"))))
	if len(words) < 2 {
		return "", note{}
	}
	return words[1], noteOf(words[2:])
}

func (h *helper) pbsOffline(message string) int {
	state, n := h.readPBSNode()
	if h.mute {
		return noAnswer
	}
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
	state, n := h.readPBSNode()
	if h.mute {
		return noAnswer
	}
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

// readLSFNode parses bhosts -l: the first word below STATUS, and the administrator's comment in
// double quotes.
func (h *helper) readLSFNode() (state string, n note) {
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
	state, n := h.readLSFNode()
	if h.mute {
		return noAnswer
	}
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
	state, n := h.readLSFNode()
	if h.mute {
		return noAnswer
	}
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

// change marks the node: the pieces split into words, the last words, the node.
func (h *helper) change(last []string, pieces ...string) int {
	argv, err := argv(pieces, append(last, h.node)...)
	if err != nil {
		h.complain(err)
		return 1
	}
	return h.mark(argv)
}
