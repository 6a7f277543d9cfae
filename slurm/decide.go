package slurm

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Prefix is the first word of every reason that nhc-gpu sets. Without a memory it is the only sign
// of ownership. With one, the reason must also be the last one that nhc-gpu set, apart from text
// that Slurm appends (" : reboot issued").
const Prefix = "NHC:"

// MaxReason is the maximum length of a reason in bytes, with the prefix. Slurm stores reasons of up
// to 131064 bytes (tested with 22.05), but a reader needs a short one.
const MaxReason = 1024

// NodeInfo is a node as slurmctld describes it.
type NodeInfo struct {
	State  State
	Reason string // without Slurm's stamp " [user@time]"; empty if there is none
	Author string // the user who set the reason; empty if Slurm was not asked for it

	// Foreign is set if the reason is not the one that nhc-gpu set last: then it is not ours,
	// even with our prefix. Same is set if it is that one, and is about the fault of the
	// verdict.
	Foreign, Same bool

	// Awaited is set if the node is UNKNOWN or down only until slurmd registers, and Slurm then
	// puts it into service.
	Awaited bool

	// Refused is set if a prolog or an epilog of ours ended with a failing status before it
	// could drain the node: Slurm then drains the node with a reason of its own.
	Refused bool
}

// Verdict is the result of the checks. A run with a check that could not be evaluated has none and
// must not act (but see [Controller.Deliver]).
type Verdict struct {
	Healthy bool
	Message string // for a failing node: the fault, in one line
	Refused bool   // the run is a prolog or an epilog that will end with a failing status

	// Code and Device identify the finding of the message: as long as they are the same, the
	// fault is the same.
	Code, Device string
	pending      string // the fault of a pending drain

	// Part is set if the run has made only a part of the checks: it resumes no node, and replaces no
	// reason of ours.
	Part bool

	// Busy is set if the run has more checks to make: it does not wait for the guard.
	Busy bool

	// Cause is the cause of a failing run; the zero value is not stored. Lacks returns why a
	// healthy run cannot resume a node that was drained with a mark, "" if it can.
	Cause Cause
	Lacks func(Mark) string

	// Early is set if a check of a healthy run has not judged something that may still be starting after a boot.
	// The run resumes no node: the boot has emptied the memory, so that the cause of the drain is unknown.
	Early bool
}

// Policy holds the choices of a site.
type Policy struct {
	// IgnoreEmptyNote treats a drained node without a reason as ours, as LBNL NHC's
	// IGNORE_EMPTY_NOTE=1 does.
	IgnoreEmptyNote bool

	// Fails is set if our drains set FAIL (SLURM_SC_OFFLINE_ARGS). Then FAIL is not a
	// person's order.
	Fails bool
}

// Action is an action on a node.
type Action int

// The actions.
const (
	None   Action = iota // nothing
	Drain                // drain the node
	Renew                // already drained by us: replace our reason
	Resume               // resume the node
)

var actionNames = [...]string{"none", "drain", "renew", "resume"}

func (a Action) String() string {
	if a < None || a > Resume {
		return fmt.Sprintf("action %d", int(a))
	}
	return actionNames[a]
}

// Decision is an action on a node, and why.
type Decision struct {
	Action Action
	Reason string // for Drain and Renew: the reason to set
	Why    string // for logs, lower case, no full stop
}

// Decide returns the action for a node's state and a verdict. It follows LBNL NHC's
// node-mark-offline and node-mark-online, with these differences:
//
//   - on failure, a node in any state that means service is drained, including planned, powering
//     and rebooting nodes; another user's stale reason is replaced by ours (24.11 keeps a node's
//     reason after RESUME);
//   - on failure, a node that is UNKNOWN or down only until its slurmd registers is drained: the drain
//     outlives the registration (tested with 22.05);
//   - a node that a person drained keeps its reason as well as its state. So does a node that a
//     person drained and that now reboots: the drain outlives the reboot, and with our reason
//     nhc-gpu would resume it later. (After "scontrol reboot ASAP" Slurm removes any drain, also
//     ours: tested with 22.05, 24.11 and 26.05. In both cases the next failing run sees the
//     outcome.)
//   - a person's order is never undone: a node with a requested or running reboot or power-down,
//     or that a person has set to FAIL, is resumed when that is over (scontrol's State=RESUME
//     would cancel the reboot);
//   - our reason is written again only if the fault has changed;
//   - a reason with our prefix stays if nhc-gpu knows that it has not written it;
//   - the reason of a drill replaces no other reason of ours;
//   - our reason replaces Slurm's reason for a failing prolog or epilog of ours, which could not
//     set its own.
func Decide(node NodeInfo, verdict Verdict, policy Policy) Decision {
	if node.State.Class == Unknown && (verdict.Healthy || !node.Awaited) {
		return Decision{Why: fmt.Sprintf("nhc-gpu does not act on the state %q", node.State.Text)}
	}
	if verdict.Healthy {
		return decideHealthy(node, policy)
	}
	return decideFailing(node, verdict, policy)
}

func decideFailing(node NodeInfo, verdict Verdict, policy Policy) Decision {
	reason := Reason(verdict.Message)
	held := node.State.Class == Drained || node.State.DrainFlag
	switch owner := node.owner(); {
	case node.Awaited:
		return Decision{Action: Drain, Reason: reason, Why: "in service when slurmd registers"}
	case node.State.Class == Down:
		return Decision{Why: "down already"}
	case !held:
		return Decision{Action: Drain, Reason: reason, Why: "in service"}
	case node.State.Order == failOrder() && !policy.Fails: // State=DRAIN would replace FAIL
		return Decision{Why: "out of service: " + node.State.Order}
	case owner == foreign && node.Refused && slurmsWords[node.Reason]:
		return Decision{Action: Renew, Reason: reason, Why: fmt.Sprintf("drained by Slurm for nhc-gpu's exit status (%s)", node.Reason)}
	case owner == foreign:
		return Decision{Why: fmt.Sprintf("drained for another reason (%s)", node.signed())}
	case owner == noOwner && !policy.IgnoreEmptyNote:
		return Decision{Why: "drained without a reason"}
	case owner == noOwner:
		return Decision{Action: Drain, Reason: reason, Why: "drained without a reason, which IGNORE_EMPTY_NOTE=1 treats as nhc-gpu's"}
	case isDrill(reason) && !isDrill(node.Reason):
		return Decision{Why: fmt.Sprintf("drained by nhc-gpu already (%s): a drill replaces no other reason", node.Reason)}
	case node.Same, sameReason(node.Reason, reason):
		return Decision{Why: "drained for this reason already"}
	case verdict.Part:
		return Decision{Why: fmt.Sprintf("drained by nhc-gpu already (%s)", node.Reason)}
	default:
		return Decision{Action: Renew, Reason: reason, Why: fmt.Sprintf("drained by nhc-gpu for another reason (%s)", node.Reason)}
	}
}

func decideHealthy(node NodeInfo, policy Policy) Decision {
	switch owner := node.owner(); {
	case node.State.Class == InService:
		return Decision{Why: "in service"}
	case node.State.Class == Drained && node.State.Full && !node.State.DrainFlag:
		return Decision{Why: "in maintenance, but not drained"} // Slurm refuses RESUME
	case owner == foreign:
		return Decision{Why: fmt.Sprintf("%s for another reason (%s)", node.State.Class, node.signed())}
	case owner == noOwner && !policy.IgnoreEmptyNote:
		return Decision{Why: fmt.Sprintf("%s without a reason", node.State.Class)}
	case node.State.Class == Down && strings.HasSuffix(node.Reason, " : reboot complete"): // scontrol reboot nextstate=DOWN
		return Decision{Why: "down after its reboot, as ordered"}
	case node.State.Order != "" && (!policy.Fails || node.State.Order != failOrder()):
		return Decision{Why: fmt.Sprintf("%s by nhc-gpu (%s), but %s", node.State.Class, node.Reason, node.State.Order)}
	default:
		return Decision{Action: Resume, Why: fmt.Sprintf("%s by nhc-gpu (%s)", node.State.Class, node.Reason)}
	}
}

// isDrill reports whether a reason is that of a rehearsal.
func isDrill(reason string) bool { return strings.HasPrefix(reason, Prefix+" "+checks.DrillMark) }

// failOrder returns the order of a node with FAIL and no other flag.
func failOrder() string { return ParseState("IDLE+FAIL").Order }

// slurmsWords are Slurm's reasons for the exit status of a prolog or an epilog (tested with 22.05,
// 24.11 and 26.05).
var slurmsWords = map[string]bool{"Prolog error": true, "Epilog error": true}

// owner is the owner of a reason.
type owner int

const (
	noOwner owner = iota // no reason is set
	ours                 // the first word is [Prefix]
	foreign              // a person's, Slurm's, or another tool's
)

func ownerOf(reason string) owner {
	words := strings.Fields(reason)
	switch {
	case len(words) == 0, len(words) == 1 && (words[0] == "none" || words[0] == "(null)"):
		return noOwner // sinfo prints none, old scontrols (null)
	case words[0] == Prefix:
		return ours
	default:
		return foreign
	}
}

// owner returns the owner of the reason: ours if it begins with [Prefix] and the memory does not
// show otherwise.
func (n NodeInfo) owner() owner {
	owner := ownerOf(n.Reason)
	if owner == ours && n.Foreign && !n.Refused { // for our exit status, 24.11 drains without a new reason if there is an old one
		return foreign
	}
	return owner
}

// signed returns the reason with its author.
func (n NodeInfo) signed() string {
	if n.Author == "" {
		return n.Reason
	}
	return n.Reason + ", by " + n.Author
}

// sameReason reports whether a node's reason is the given one, apart from Slurm's additions. A reason
// that names the jobs that ran when the fault began stays, even if one of them has ended and is no longer
// named. Of a finding's reason only device and code count: the number of other findings changes, and
// several checks detect the same fault.
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

// Ours reports whether the reason is one of nhc-gpu, or of LBNL NHC.
func Ours(reason string) bool { return ownerOf(reason) == ours }

// SweepMark begins the reasons of sweeps. The health check of a node does not test what a sweep tests:
// only a sweep, or a person, ends such a drain.
const SweepMark = Prefix + " sweep "

// BySweep reports whether a reason is that of a sweep.
func BySweep(reason string) bool { return strings.HasPrefix(reason, SweepMark) }

// DrillCode begins the code of a drill in the lists of a fleet: drill.gpu.xid.79 is not a fault.
const DrillCode = "drill."

// ReasonCode returns the code in a reason of nhc-gpu, "" if it has none: "NHC: gpu3 lost ...
// (check_gpu_count) [gpu.recovery.lost]". The code of a drill begins with [DrillCode].
func ReasonCode(reason string) string {
	if m := ofSweep().FindStringSubmatch(reason); m != nil {
		return m[1]
	}
	m := parseFinding(reason)
	switch {
	case m == nil:
		return ""
	case isDrill(reason):
		return DrillCode + m[3]
	}
	return m[3]
}

// checkOf returns the name of the check in a reason: of a finding, of a check of LBNL NHC, or of a line that
// did not end in time. It returns "" for any other reason: there the word can come from a user.
func checkOf(reason string) string {
	if m := parseFinding(reason); m != nil {
		return m[2]
	}
	if m := ofCheckLine().FindStringSubmatch(reason); m != nil {
		return m[1]
	}
	return ""
}

var ofCheckLine = checks.Lazily(`^NHC: (?:Script timed out while executing ['"].*?\b)?(check_\w+)\b`)

// SweepDevice returns the device in the reason of a sweep with that code, such as eth1, "" if it has none.
func SweepDevice(code, reason string) string {
	_, rest, _ := strings.Cut(reason, checks.Words(code))
	rest, _, _ = strings.Cut(rest, "[")
	return strings.TrimSpace(rest)
}

// faultOf returns the part that identifies the fault in a reason made by verdict.Reason: the device
// with the fault's text, and the code. It returns "" for any other reason.
func faultOf(reason string) string {
	m := parseFinding(reason)
	if m == nil {
		return ""
	}
	return m[1] + " " + checks.FaultOf(m[3])
}

// parseFinding splits a reason made by verdict.Reason into its text, check and code, nil for any other reason.
// Only the end of a reason counts: users choose the names in a text. A reason that is cut has no such end, and
// the text of a check of LBNL NHC can end in such a name.
func parseFinding(reason string) []string {
	if ofLBNL().MatchString(reason) {
		return nil
	}
	return ofFinding().FindStringSubmatch(reason)
}

const code = `\[([a-z0-9_-]+(?:\.[a-z0-9_-]+)+)\]`

var (
	ofFinding = checks.Lazily(`^NHC: (.+?)(?:, want .+?)?(?:: [a-zA-Z ]+)? \((check_\w+)\) ` + code + `(?: \+\d+)?(?: \[job [0-9 ]+\])?(?:` + addition + `)*$`)
	ofSweep   = checks.Lazily(`^NHC: sweep .+ ` + code + `(?:` + addition + `)*$`)
	ofLBNL    = checks.Lazily(`^NHC: check_\w+:  `)
)

// ByCheck reports whether a reason is one that health checks write: that of a finding, or of a check of LBNL
// NHC. Others with our prefix can be a person's.
func ByCheck(reason string) bool {
	return faultOf(reason) != "" || strings.HasPrefix(reason, Prefix+" check_")
}

// HeldForRMA is the addition to our reason after the last remedy.
const HeldForRMA = "held for RMA"

// IsHeldForRMA reports whether a reason of ours says that the remedies are over.
func IsHeldForRMA(reason string) bool {
	return ReasonCode(reason) == heldCode || strings.Contains(additions().FindString(reason), " : "+HeldForRMA)
}

// heldCode is the code of a drain for a fault that no remedy has repaired, see remedy.HoldCode.
const heldCode = "remedy.hold"

// addition matches the texts that nhc-gpu or slurmctld appends to a reason. Those of slurmctld are in its 22.05;
// any other text counts as a person's, so that the node stays drained.
const addition = ` : (?:remedy [a-z-]+|` + HeldForRMA + `|reboot (?:requested|issued|complete|timed out)|Not responding|ResumeTimeout reached|Node unexpectedly rebooted` +
	`|Low (?:CPUs|RealMemory|TmpDisk|socket\*core\*thread count)(?: \([a-z0-9:.%< ]+\))?|gres/[^ ]+ count (?:too low|reported lower than configured)(?: \([0-9< ]+\))?)`

var additions = checks.Lazily(`(?:` + addition + `)+$`)

// withoutAdditions returns a reason as it was set.
func withoutAdditions(reason string) string { return additions().ReplaceAllString(reason, "") }

// jobSuffix matches the suffix of [Attributed], and Slurm's text after it.
var jobSuffix = checks.Lazily(`^ \[job [0-9 ]+\]( : .*)?$`)

// attributed matches that suffix at the end of a message.
var attributed = checks.Lazily(` \[job [0-9 ]+\]$`)

// Reason returns a node's reason for a message: prefix and message in one printable line of at
// most [MaxReason] bytes. It replaces control characters, which would let text pose as further
// lines of scontrol's output, and double quotes, which Slurm strips at the ends.
//
// The job at the end of the message, where the fault began, is kept. A message that ends like an addition, by
// a name that a user chose, loses the blank that makes it one.
func Reason(message string) string {
	text := strings.TrimSpace(Prefix + " " + printable(message))
	text = additions().ReplaceAllStringFunc(text, func(s string) string { return strings.ReplaceAll(s, " : ", ": ") })
	job := attributed().FindString(text)
	text = strings.TrimSuffix(text, job)
	if len(job) > MaxReason/2 {
		job = ""
	}
	return cut(text, MaxReason-len(job)) + job
}

// printable returns text as one printable line without double quotes.
func printable(text string) string { return checks.ReasonText(text) }

// cut shortens text to n bytes between runes; the last three bytes are dots.
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
