package slurm

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Prefix is the first word of every reason we set. Without a memory it is the only sign
// of ownership; with one the reason must be ours, except for text that Slurm appends
// (" : reboot issued").
const Prefix = "NHC:"

// MaxReason is the length of a reason in bytes, prefix included. Slurm itself
// keeps reasons whole up to 131064 bytes (22.05 run), but nobody reads that.
const MaxReason = 1024

// NodeInfo is a node as slurmctld describes it.
type NodeInfo struct {
	State  State
	Reason string // without Slurm's stamp " [user@time]"; empty without one
	Author string // the user who has set the reason; empty if Slurm was not asked for it

	// Foreign says that the reason is not the one that we wrote last, so that it is
	// not ours, whatever it begins with; Same that it is, and for the fault of the
	// verdict.
	Foreign, Same bool

	// Refused says that a prolog or an epilog of ours has ended with a failing
	// status before it could drain the node: Slurm drains it for that, in words
	// of its own.
	Refused bool
}

// Verdict is what the checks came to. A run that could not tell has none and
// must not act (but see [Controller.Deliver]).
type Verdict struct {
	Healthy bool
	Message string // of a failing node: what is wrong, one line
	Refused bool   // the run is a prolog or an epilog that will end with a failing status

	// Code and Device name the finding that the message is about: a fault is the same
	// as long as they are.
	Code, Device string
	pending      string // the fault of a drain that was kept

	// Cause is what a run has failed by; the zero value is not remembered. Lacks says
	// of a healthy run why it does not take back what was drained for a cause, ""
	// if it does.
	Cause Cause
	Lacks func(Cause) string
}

// Policy is what a site may choose.
type Policy struct {
	// IgnoreEmptyNote takes a drained node without any reason for ours, as
	// LBNL NHC's IGNORE_EMPTY_NOTE=1 does.
	IgnoreEmptyNote bool

	// Fails says that our drains set FAIL (SLURM_SC_OFFLINE_ARGS), so that FAIL
	// is no order of a person's.
	Fails bool
}

// Action is what is to be done to a node.
type Action int

// The actions.
const (
	None   Action = iota // nothing
	Drain                // take it out of service
	Renew                // drained by us already: replace our reason
	Resume               // put it back into service
)

var actionNames = [...]string{"none", "drain", "renew", "resume"}

func (a Action) String() string {
	if a < None || a > Resume {
		return fmt.Sprintf("action %d", int(a))
	}
	return actionNames[a]
}

// Decision is what to do to a node.
type Decision struct {
	Action Action
	Reason string // the reason to set, of Drain and Renew
	Why    string // for logs, lower case, no full stop
}

// Decide says what a verdict means for a node. It is LBNL NHC's node-mark-offline
// and node-mark-online, but for these:
//
//   - every state that means service is drained on failure, planned, powering
//     or rebooting nodes too, and a stale reason of somebody else's does not
//     take the place of ours (24.11 keeps a node's reason after RESUME);
//   - what a person drained keeps its reason as well as its state. So does a
//     node drained by a person and now rebooting: the drain outlives the
//     reboot, and with our reason on it we would resume it later. (After
//     "scontrol reboot ASAP" Slurm wipes any drain, ours too: 22.05, 24.11 and
//     26.05 run. Either way the next failing run sees the outcome.)
//   - no order of a person's is undone: a node on which a reboot or a power-down is
//     requested or under way, or that a person has set to FAIL, is resumed when
//     that is over (scontrol's State=RESUME would cancel the reboot);
//   - our reason is written anew only if the fault has changed;
//   - a reason that begins with our prefix is left alone if we know that we have not
//     written it;
//   - it replaces what Slurm says of a prolog or an epilog of ours that failed
//     before it could say it itself.
func Decide(node NodeInfo, verdict Verdict, policy Policy) Decision {
	if node.State.Class == Unknown {
		return Decision{Why: fmt.Sprintf("state %q is not one to act on", node.State.Text)}
	}
	if verdict.Healthy {
		return decideHealthy(node, policy)
	}
	return decideFailing(node, Reason(verdict.Message), policy)
}

func decideFailing(node NodeInfo, reason string, policy Policy) Decision {
	held := node.State.Class == Drained || node.State.Held
	switch owner := node.owner(); {
	case node.State.Class == Down:
		return Decision{Why: "down already"}
	case !held:
		return Decision{Action: Drain, Reason: reason, Why: "in service"}
	case node.State.Order == failOrder() && !policy.Fails: // State=DRAIN takes the place of FAIL
		return Decision{Why: "out of service: " + node.State.Order}
	case owner == foreign && node.Refused && slurmsWords[node.Reason]:
		return Decision{Action: Renew, Reason: reason, Why: fmt.Sprintf("drained by Slurm for a status of ours (%s)", node.Reason)}
	case owner == foreign:
		return Decision{Why: fmt.Sprintf("drained for another reason (%s)", node.signed())}
	case owner == nobody && !policy.IgnoreEmptyNote:
		return Decision{Why: "drained without a reason"}
	case owner == nobody:
		return Decision{Action: Drain, Reason: reason, Why: "drained without a reason, which we are to ignore"}
	case node.Same, sameReason(node.Reason, reason):
		return Decision{Why: "drained for this reason already"}
	default:
		return Decision{Action: Renew, Reason: reason, Why: fmt.Sprintf("drained by us for another reason (%s)", node.Reason)}
	}
}

func decideHealthy(node NodeInfo, policy Policy) Decision {
	switch owner := node.owner(); {
	case node.State.Class == InService:
		return Decision{Why: "in service"}
	case node.State.Class == Drained && node.State.Full && !node.State.Held:
		return Decision{Why: "in maintenance, but not drained"} // Slurm refuses RESUME
	case owner == foreign:
		return Decision{Why: fmt.Sprintf("%s for another reason (%s)", node.State.Class, node.signed())}
	case owner == nobody && !policy.IgnoreEmptyNote:
		return Decision{Why: fmt.Sprintf("%s without a reason", node.State.Class)}
	case node.State.Order != "" && (!policy.Fails || node.State.Order != failOrder()):
		return Decision{Why: fmt.Sprintf("%s by us (%s), but %s", node.State.Class, node.Reason, node.State.Order)}
	default:
		return Decision{Action: Resume, Why: fmt.Sprintf("%s by us (%s)", node.State.Class, node.Reason)}
	}
}

// failOrder is the order of a node with FAIL alone.
func failOrder() string { return ParseState("IDLE+FAIL").Order }

// slurmsWords are Slurm's reasons for the status of a prolog or an epilog (22.05,
// 24.11 and 26.05 run).
var slurmsWords = map[string]bool{"Prolog error": true, "Epilog error": true}

// owner is whose a reason is.
type owner int

const (
	nobody  owner = iota // no reason is set
	ours                 // the first word is [Prefix]
	foreign              // a person's, Slurm's, or another tool's
)

func ownerOf(reason string) owner {
	words := strings.Fields(reason)
	switch {
	case len(words) == 0, len(words) == 1 && (words[0] == "none" || words[0] == "(null)"):
		return nobody // sinfo prints none, old scontrols (null)
	case words[0] == Prefix:
		return ours
	default:
		return foreign
	}
}

// owner is whose the reason is: ours if it begins with [Prefix] and memory does not say
// otherwise.
func (n NodeInfo) owner() owner {
	owner := ownerOf(n.Reason)
	if owner == ours && n.Foreign && !n.Refused { // 24.11 drains for our status without a word, if an old reason is there
		return foreign
	}
	return owner
}

// signed is the reason with who has set it.
func (n NodeInfo) signed() string {
	if n.Author == "" {
		return n.Reason
	}
	return n.Reason + ", by " + n.Author
}

// sameReason reports whether a node's reason is the given one, Slurm's additions
// apart. A reason that names the jobs in which the fault began stays, though one of
// them has ended and is named no more. Of a finding's reason only device and code count:
// the number of other findings changes, and several checks meet the same fault.
func sameReason(have, want string) bool {
	if have == want || strings.HasPrefix(have, want+" : ") {
		return true
	}
	if fault := faultOf(want); fault != "" && fault == faultOf(have) {
		return true
	}
	rest, ok := strings.CutPrefix(have, strings.TrimSuffix(want, attributed().FindString(want)))
	return ok && jobSuffix().MatchString(rest)
}

// faultOf returns what identifies the fault in a reason that verdict.Reason has made, the
// device with the fault's words and the code, and "" for any other reason.
func faultOf(reason string) string {
	m := ofFinding().FindStringSubmatch(reason)
	if m == nil {
		return ""
	}
	return m[1] + " " + checks.FaultOf(m[2])
}

var ofFinding = checks.Lazily(`^NHC: (.+?)(?:, want .+?)?(?:: [a-zA-Z ]+)? \(check_\w+\) \[([a-z0-9._-]+)\](?: \+\d+)?(?: \[job [0-9 ]+\])?(?: : .*)?$`)

// jobSuffix is what [Attributed] adds, and what Slurm adds behind it.
var jobSuffix = checks.Lazily(`^ \[job [0-9 ]+\]( : .*)?$`)

// attributed finds it at the end of a message.
var attributed = checks.Lazily(` \[job [0-9 ]+\]$`)

// Reason makes a node's reason of a message: prefix and message in one
// printable line of at most [MaxReason] bytes. Control characters would let
// text pose as further lines of scontrol's output, and Slurm strips double
// quotes at the ends; both are replaced.
//
// The job that the fault began in is kept, if the message names it at its end.
func Reason(message string) string {
	text := strings.TrimSpace(Prefix + " " + printable(message))
	job := attributed().FindString(text)
	if len(job) > MaxReason/2 {
		job = ""
	}
	return cut(strings.TrimSuffix(text, job), MaxReason-len(job)) + job
}

// printable makes text one printable line without double quotes.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case unicode.IsPrint(r):
			return r
		default:
			return ' '
		}
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.TrimSpace(text)
}

// cut shortens text to n bytes, the last three of them dots, between runes.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	end := n - len("...")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.TrimRight(text[:end], " ") + "..."
}
