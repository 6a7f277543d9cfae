package xid

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Explain tells what is made of a code (79, sxid:12028) or of a line of the
// kernel's log, and why: the class, the source, the site's own word.
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
	class, what := lineClass(env, r, line)
	add("class", "%s: %s", r.Class, r.meaning(r.Class))
	if line.Kind == lineXid && class != r.Class {
		add("this line", "%s: %s", class, r.meaning(class))
	}
	add("decoded", "%s", what)
	add("severity", "%s", policy.severityOf(class))
	add("remedy", "%s", r.remedyOf(class, line.Text))
	add("do", "%s", r.advice(class, key.Switch))
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

// addRules tells what makes another class of the event.
func addRules(add func(label, format string, args ...any), r xidRow) {
	switch r.State {
	case "bank":
		add("NVML", "decides, where it is asked: a row remapping that is pending is RESET, one that has failed RMA-HOLD")
	case "remap":
		add("NVML", "decides, where it is asked: a remapping that is pending is RESET, one that has failed RMA-HOLD")
	case "sram":
		add("NVML", "decides, where it is asked: SRAM errors beyond their threshold are RMA-HOLD")
	case "links":
		add("NVML", "decides, where it is asked: WATCH if the link is up, RESET if it is down")
	case "mig":
		add("NVML", "decides, where it is asked: REBOOT on an A100 without MIG")
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
		for _, text := range unitsOf(r.Code) {
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
		add("again", "%s, if it comes back%s within a week after a reset or a reboot", strings.Join(steps, ", then "), on)
	}
	if r.Clears != 0 {
		add("clears", "Xid %d", r.Clears)
	}
	if r.Qualifies != 0 {
		add("tells more", "about Xid %d", r.Qualifies)
	}
	if r.Nonfatal != "" && r.Nonfatal != r.Class {
		add("non-fatal", "%s", r.Nonfatal)
	}
}

// lineClass is the class of one line, with what its numbers mean.
func lineClass(env *checks.Env, r xidRow, line xidLine) (class checks.XidClass, what string) {
	if line.Kind != lineXid {
		return r.Class, ""
	}
	driver, _ := probe.DriverVersion(env.Host) // without it either layout may fit
	j := &xidJudge{ledger: &xidLedger{Driver: driver}}
	class, notes := j.classOf(&xidEvent{Key: line.Key, Text: line.Text, Action: line.Action, Nonfatal: line.Nonfatal}, &r, nil)
	if r.Class == checks.XidAuthority {
		_, _, asks := recoveryAction(line.Action)
		return class, "the driver asks for " + asks
	}
	return class, strings.Join(notes, ", ")
}

// findXidLine looks for the driver's words in a line as people paste it. The
// fabric manager's own log tells of SXids, too.
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

// meaning is what a class does for a row, in a few words.
func (r *xidRow) meaning(c checks.XidClass) string {
	switch {
	case c == checks.XidApp && r.Victim:
		return "a warning, once: the application was hit and must be restarted; DIAG when three jobs have it within a day"
	case c == checks.XidReboot && r.Cure != "":
		return "drains the node; " + r.Cure
	}
	return c.Meaning()
}
