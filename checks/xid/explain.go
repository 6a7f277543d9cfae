package xid

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Explain explains how a code (79, sxid:12028) or a line of the kernel's log is judged: its class, the
// source, and the site's override.
func Explain(env *checks.Env, text string) (string, error) {
	line := xidLine{}
	key, isCode := ParseXidKey(text)
	if !isCode {
		if line = findXidLine(text); line.Kind != lineXid {
			return "", fmt.Errorf("xid explain %q: want a code (79, sxid:12028), or a line of the kernel's log with an Xid", text)
		}
		key = line.Key
	}
	policy, policyErr := readXidPolicy(env)
	r := policy.row(key)
	var b strings.Builder
	add := func(label, format string, args ...any) {
		if value := fmt.Sprintf(format, args...); value != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", label, value)
		}
	}
	fmt.Fprintf(&b, "%s %s\n", key, r.Name)
	if line.Kind == lineXid {
		add("device", "%s", line.GPU)
		add("process", "%s", strings.TrimSpace(line.PID+" "+line.Name))
	}
	add("means", "%s", r.Means)
	add("NVIDIA", "%s", r.Says)
	class, what := classifyLine(env, r, line)
	add("class", "%s: %s", r.Class, r.explainClass(r.Class))
	if line.Kind == lineXid && class != r.Class {
		add("this line", "%s: %s", class, r.explainClass(class))
	}
	add("decoded", "%s", what)
	add("severity", "%s", policy.severityOf(class))
	add("remedy", "%s", r.fitRemedy(class, policy.severityOf(class), r.chooseRemedy(class, line.Text)))
	add("do", "%s", r.advise(class, key.Switch))
	addRules(add, r)
	add("why", "%s", r.Why)
	add("source", "%s", r.Source)
	switch {
	case policyErr != nil:
		add("override", "not used: %v", policyErr)
	case r.override != "":
		add("override", "%s", r.override)
	default:
		add("override", "none")
	}
	return b.String(), nil
}

// addRules adds the rules that change the class of an event.
func addRules(add func(label, format string, args ...any), r xidRow) {
	switch r.State {
	case "remap", "bank":
		add("NVML", "decides if it can be queried: RESET if a remapping is pending, RMA-HOLD if one has failed")
	case "sram":
		add("NVML", "decides if it can be queried: RMA-HOLD if SRAM errors are beyond their threshold")
	case "links":
		add("NVML", "decides if it can be queried: WATCH if the link is up, RESET if it is down")
	case "mig":
		add("NVML", "decides if it can be queried: REBOOT on an A100 without MIG")
	}
	if (r.Code == xidContained || r.Code == xidUncontained) && r.override == "" {
		not, _ := (&xidEvent{Asks: asksNothing}).verdict(r.Class)
		add("verdict", "RESET if the line has RST: Yes or D-RST: Yes, %s if it has No twice", not)
	}
	if rule := r.Repeat; rule != nil {
		what := "events"
		switch {
		case rule.Jobs && rule.Class.Drains():
			what = "different jobs"
		case rule.Jobs:
			what = "processes"
		}
		if rule.Same != "" {
			what += " in the same place (GPC and TPC)"
		}
		add("repeated", "%s after %d %s within %d hours", rule.Class, rule.Events, what, rule.Hours)
	}
	if r.Class == checks.XidDecode && r.override == "" {
		for _, text := range describeUnits(r.Code) {
			add("unit", "%s", text)
		}
	}
	if len(r.Again) > 0 {
		var steps []string
		for _, c := range r.Again {
			steps = append(steps, string(c))
		}
		on := ""
		if r.Same != "" {
			on = " on the same " + r.Same
		}
		add("again", "%s, if it returns%s within a week after a reset or a reboot", strings.Join(steps, ", then "), on)
	}
	if r.Marks != nil {
		add("recovery", "the action None lowers it only with drivers from %s on: older ones set none for it", strings.Join(r.Marks, ", "))
	}
	if r.Clears != 0 {
		add("clears", "Xid %d", r.Clears)
	}
	if r.Qualifies != 0 {
		add("details", "of Xid %d", r.Qualifies)
	}
	if r.Nonfatal != "" && r.Nonfatal != r.Class {
		add("non-fatal", "%s", r.Nonfatal)
	}
}

// classifyLine returns the class of one line, and the meaning of its numbers.
func classifyLine(env *checks.Env, r xidRow, line xidLine) (class checks.XidClass, what string) {
	if line.Kind != lineXid {
		return r.Class, ""
	}
	driver, _ := probe.DriverVersion(env.Host) // without it either layout is accepted
	j := &xidJudge{ledger: &xidLedger{Driver: driver}}
	class, notes := j.classify(&xidEvent{Key: line.Key, Text: line.Text, Action: line.Action, Asks: line.Asks, Nonfatal: line.Nonfatal}, &r)
	if r.Class == checks.XidAuthority {
		_, _, asks := explainAction(line.Action)
		return class, "the driver requests " + asks
	}
	return class, strings.Join(notes, ", ")
}

// findXidLine finds the driver's message in a pasted line. The fabric manager's log also has SXids.
func findXidLine(text string) xidLine {
	if l, ok := checks.PastedLine(text, checks.AboutGPU); ok {
		return readXid(l)
	}
	if _, rest, ok := strings.Cut(text, "detected NVSwitch fatal error "); ok {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		if n, ok := checks.ParseCode(digits); ok {
			return xidLine{Kind: lineXid, Key: checks.XidKey{Switch: true, Code: n}, Text: checks.XidText(rest)}
		}
	}
	return xidLine{}
}

// explainClass returns the effect of a class for a row, in a few words.
func (r *xidRow) explainClass(c checks.XidClass) string {
	switch {
	case c == checks.XidApp && r.Victim:
		return "one warning: the application is the victim and must be restarted; DIAG if three jobs have it within a day"
	case c == checks.XidApp && r.Repeat != nil: // "repeated" has the rule of the row
		text, _, _ := strings.Cut(c.Meaning(), ";")
		return text
	case c.Drains() && r.cureOf(c) != "":
		return "drains the node; " + r.Cure
	}
	return c.Meaning()
}
