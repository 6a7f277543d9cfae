package sweep

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// explain sets text and advice of a suspect.
func (s Suspect) explain(text string) Suspect {
	s.Text, s.Do = text, codeRow(s.Code).Do
	if s.Partners == nil {
		s.Partners = []string{}
	}
	return s
}

// shared reports whether a suspect is what its partners share, such as a switch.
func (s *Suspect) shared() bool { return s.Node == "" && len(s.Leaves) < 2 }

// doUplinks is the advice about a leaf switch.
const doUplinks = "Look for errors at the uplinks of the leaf switch, and compare its settings with those of another one."

// doShared is the advice about nodes that may be healthy.
const doShared = "See what these nodes share: a switch, its uplinks, a subnet or a VLAN."

// missesFloor is the note on values that are below the floor of the site.
const missesFloor = "the median misses the floor: the whole fleet is slow, or the floor is wrong"

// codeRow returns the row of a code, an empty one if it has none.
func codeRow(code string) Code {
	for _, c := range Codes() {
		if c.Code == code {
			return c
		}
	}
	return Code{}
}

// faultText describes a fault in a few words.
func faultText(f Fault) string {
	switch f {
	case FaultRefused:
		return "refused"
	case FaultSilent:
		return "no answer"
	case FaultWrong:
		return "wrong data"
	case FaultMTU:
		return "a full datagram does not pass"
	case FaultUnable:
		return "the test cannot run"
	case FaultNetwork:
		return "NCCL uses TCP although the node has RDMA ports"
	case FaultLost:
		return "node lost"
	case FaultCheck:
		return "check failed"
	case FaultNone, FaultError:
	}
	return "error"
}

func commonestFault(faults map[Fault]int) (f Fault) {
	for k, n := range faults {
		if n > faults[f] || n == faults[f] && k < f {
			f = k
		}
	}
	return f
}

// codeOf returns the code of a finding.
func codeOf(kind Kind, s symptom, f Fault) string {
	stage := map[Kind]string{
		KindEcho: "reach", KindMTU: "reach", KindConnect: "reach", KindName: "reach", KindStream: "tcp", KindRing: "tcp",
		KindWrite: "rdma", KindLatency: "rdma", KindNCCL: "nccl",
	}[kind]
	what := ""
	switch {
	case s == unable:
		what = "unable"
	case (kind == KindEcho || kind == KindConnect) && s == slow:
		what = "latency"
	case kind == KindEcho:
		what = "loss"
	case stage == "reach":
		what = string(kind)
	case s == slow && kind == KindLatency:
		what = "latency"
	case s == slow:
		what = "slow"
	case s == flaky:
		what = "flaky"
	case f == FaultWrong && stage != "rdma":
		what = "wrong"
	case stage == "nccl" && f == FaultSilent:
		what = "hang"
	case stage == "nccl" && f == FaultNetwork:
		what = "network"
	case stage == "nccl":
		what = "error"
	default:
		what = "failed"
	}
	return "sweep." + stage + "." + what
}

// unitOf returns the unit of the values of a kind.
func unitOf(k Kind) string {
	switch k {
	case KindEcho, KindConnect, KindName:
		return "ms"
	case KindLatency:
		return "us"
	case KindNCCL:
		return "GB/s"
	case KindStream, KindRing, KindWrite:
		return "Gb/s"
	case KindCheck, KindMTU:
	}
	return ""
}

// Confidences of facts that no statistics decide.
const (
	lostConfidence  = 0.99 // the node itself no longer answers
	checkConfidence = 0.95 // a check of the node alone
	leafConfidence  = 0.95 // the medians of many pairs
	doubtConfidence = 0.4
	mostConfidence  = 0.9999
)

// confidence returns the probability that an accusation is right. For values it is one minus the
// chance that noise alone does it in any of the inquiries. For faults that are counted, each bad test
// with a proven partner leaves one chance in ten of another cause, and good tests lower it in
// proportion.
func (f finding) confidence(inquiries int) float64 {
	c := 0.0
	switch {
	case f.symptom == lossy:
		c = 1 - float64(max(inquiries, 1))*math.Pow(10, -f.z)
	case f.z > 0:
		c = 1 - float64(max(inquiries, 1))*normalTail(f.z)
	default:
		c = (1 - math.Pow(0.1, float64(f.bad))) * float64(f.bad) / float64(max(f.looks, 1))
	}
	if f.beside {
		c *= 0.9
	}
	if f.doubt {
		c = min(c, 0.5)
	}
	return min(max(c, 0.1), mostConfidence)
}

// subjectOf is the beginning of a text: "eth0: sends: ".
func subjectOf(plane, way string, kind Kind) string {
	var parts []string
	if plane != "" {
		parts = append(parts, plane)
	}
	switch {
	case way == "":
	case kind == KindName && way == "sends":
		parts = append(parts, "resolves")
	case kind == KindName:
		parts = append(parts, "is resolved")
	default:
		parts = append(parts, way)
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ": ") + ": "
}

// describeFinding names the fault, the expected value and the measured one.
func describeFinding(s Suspect, f finding) string {
	text := codeRow(s.Code).Fault
	switch {
	case f.symptom == lossy:
		text += fmt.Sprintf(": got %s %%, healthy pairs lose %s %%", number(f.value), number(f.expect))
	case s.Unit != "":
		text += fmt.Sprintf(": want about %s %s, got %s %s", number(f.expect), s.Unit, number(f.value), s.Unit)
	case f.text != "":
		text += ": " + strings.Join(strings.Fields(f.text), " ")
	case f.fault != FaultNone && faultText(f.fault) != text:
		text += ": " + faultText(f.fault)
	}
	if len(s.Ops) > 0 {
		text += " in " + strings.Join(s.Ops, ", ")
	}
	if n := len(s.Partners); n > 0 {
		text += fmt.Sprintf(", with %d different nodes", n)
	}
	if f.beside {
		text += ", beside other jobs"
	}
	return text
}

func addNumbers(s *Suspect, f finding) {
	if f.value == 0 && f.expect == 0 || math.IsNaN(f.value) || math.IsNaN(f.expect) {
		return
	}
	s.Value, s.Expect, s.Unit = f.value, f.expect, unitOf(s.Kind)
	if f.symptom == lossy {
		s.Unit = "%"
	}
}

// groupSuspect doubts what the nodes of a group share. Its partners are those nodes.
func groupSuspect(s Suspect, text string) Suspect {
	s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
	s = s.explain(fmt.Sprintf("%s: %d nodes, which are healthy with each other: %s", text, len(s.Partners), listed(s.Partners)))
	s.Do = doShared
	return s
}

// separate begins a remark on tests that fail between parts of the cluster.
const separate = "separate networks? "

// sortSuspects puts the most certain suspects first.
func sortSuspects(all []Suspect) {
	slices.SortStableFunc(all, func(a, b Suspect) int {
		doubt := 0
		if a.Doubt != b.Doubt {
			doubt = -1
			if a.Doubt {
				doubt = 1
			}
		}
		return cmp.Or(doubt, cmp.Compare(b.Confidence, a.Confidence), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Plane, b.Plane))
	})
}

// merge joins suspects of the same node, code and plane: an MTU that differs, and a datagram that
// does not pass. The measured one has the looks, the compared one the number.
func merge(all []Suspect) (kept []Suspect) {
	for _, s := range all {
		i := slices.IndexFunc(kept, func(k Suspect) bool {
			return k.Node != "" && k.Node == s.Node && k.Peer == "" && s.Peer == "" && k.Code == s.Code && k.Plane == s.Plane
		})
		if i < 0 {
			kept = append(kept, s)
			continue
		}
		k := &kept[i]
		k.Looks, k.Partners = k.Looks+s.Looks, append(slices.Clone(k.Partners), s.Partners...)
		k.Confidence, k.Doubt = max(k.Confidence, s.Confidence), k.Doubt && s.Doubt
	}
	return kept
}

// number prints a value with three digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a < 0.001:
		return fmt.Sprintf("%.1g", v)
	case a < 1000:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return fmt.Sprintf("%.0f", v)
}

// listed names the first items of a list.
func listed(list []string) string {
	const most = 8
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// oneLine joins a subject and a text, without line breaks.
func oneLine(subject, text string) string {
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case text == "":
		return subject
	case subject == "":
		return text
	}
	return subject + ": " + text
}

func cmpText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
