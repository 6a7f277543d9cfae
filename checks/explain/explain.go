// Package explain explains a check, a code, a message or a line of the kernel's log.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Explain explains the name of a check, a line of the kernel's log, an Xid or SXid, the code
// of a finding, a message or a reason of ours, or a counter of errors: what it means, how the
// checks judge it, what to do, and the source.
func Explain(env *checks.Env, text string) (string, error) {
	text = strings.TrimSpace(text)
	if code, ok := strings.CutPrefix(text, "drill."); ok { // as status --fleet lists a rehearsal
		answer, err := Explain(env, code)
		return answer + explainDrill(checks.DrillMark), err
	}
	whole := text
	if info, ok := checkOf(text); ok {
		return explainCheck(info), nil
	}
	if l, ok := checks.PastedLine(text, checks.AboutDevice); ok {
		return explainLine(l), nil
	}
	if l, ok := checks.PastedLine(text, checks.AboutLink); ok {
		return checks.Explained("A lost link", "device", strings.TrimSpace(l.PCI+" "+l.Dev), "the check", "check_ib_link_flapping counts it: it fails if it repeats", "do", checks.WhatToDo("ib.flap"), "source", l.Source), nil
	}
	if answer, err := xid.Explain(env, text); err == nil {
		return answer, nil
	}
	if answer := explainOther(text); answer != "" {
		return answer, nil
	}
	if answer := explainSlurm(text); answer != "" {
		return answer, nil
	}
	if answer := explainRun(env, text); answer != "" {
		return answer, nil
	}
	for _, code := range codeInText().FindAllString(text, -1) {
		if answer := explainCode(env, code); answer != "" {
			return answer + explainMore(text) + explainDrill(text), nil
		}
	}
	if answer := explainCounter(text); answer != "" {
		return answer, nil
	}
	if m := xidInText().FindStringSubmatch(text); m != nil { // from a message of check_gpu_xid
		return xid.Explain(env, m[0])
	}
	if name := checkInText().FindString(text); name != "" {
		if at := inLog().FindStringIndex(text); at != nil {
			text = text[at[1]:]
		}
		if info, ok := checks.Lookup(name); ok {
			return explainMessage(env, info, text), nil
		}
		if spell.Nearest(name, checks.Names()) == "" && (strings.HasPrefix(text, "NHC: ") || strings.HasPrefix(text, name+": ") && whole != text) {
			return checks.Explained("A message of "+name, "means", "nhc-gpu has no check of this name: a script of the site defines it, in /etc/nhc/scripts", "do", "grep -n "+name+" /etc/nhc/scripts/*.nhc /etc/nhc/nhc.conf; nhc-gpu check "+name+" runs it"), nil
		}
	}
	if codes := codesBelow(text); len(codes) > 0 {
		return listCodes(text, codes), nil
	}
	if codes := codesOfReason(text); len(codes) > 0 {
		return listCodes("A reason that fits", codes), nil
	}
	recipes := explainRecipes(text)
	near := spell.DidYouMean(text, append(checks.Names(), checks.Codes()...))
	if near == "" || recipes != "" {
		if answer := mention(text) + recipes; answer != "" {
			return answer, nil
		}
	}
	want := ": want"
	if near != "" {
		want = near + " Otherwise want"
	}
	return "", fmt.Errorf("%q is unknown%s the name of a check, the code of a finding (gpu.recovery.lost), a line of the kernel's log, "+
		"an Xid (79, sxid:12028), a reason or message of nhc-gpu, or a counter (symbol_error); "+
		"other messages: /usr/share/doc/nhc-gpu/docs/troubleshooting.md; settings: nhc.conf(5)", text, want)
}

var (
	codeInText   = checks.Lazily(`[a-z]+(\.[a-z0-9_-]+)+`)
	moreInReason = checks.Lazily(` (\+[0-9]+)$`)
	xidInText    = checks.Lazily(`\bS?Xid \d{1,5}\b`)
	checkInText  = checks.Lazily(`\bcheck_[a-z0-9_]+`)
)

// explainLine explains a message of klog.toml.
func explainLine(l checks.KernelLine) string {
	number := 0
	if len(l.Row.Numbers) > 0 {
		number, _ = checks.ParseCode(l.Number)
	}
	return explainRow(l.Row, l.Row.Meaning(number), strings.TrimSpace(l.PCI+" "+l.Dev), l.Detail)
}

func explainRow(r *checks.MessageRow, means, device, detail string) string {
	code := r.Code
	if r.Class == checks.XidIgnore {
		code = ""
	}
	return checks.Explained(strings.ToUpper(means[:1])+means[1:], "device", device, "detail", detail, "code", code,
		"the check", fabric.KernelLogName+": "+r.Does(), "remedy", string(r.Remedy), "do", r.Do, "why", r.Why, "source", r.Source)
}

// explainCode explains a code; it returns "" if no finding has it.
func explainCode(env *checks.Env, code string) string {
	if number, ok := strings.CutPrefix(code, "gpu.xid."); ok {
		if answer, err := xid.Explain(env, "xid:"+number); err == nil {
			return answer
		}
	}
	if number, ok := strings.CutPrefix(code, "gpu.sxid."); ok {
		if answer, err := xid.Explain(env, "sxid:"+number); err == nil {
			return answer
		}
	}
	for i := range checks.MessageTable().Rows {
		if r := &checks.MessageTable().Rows[i]; r.Code == code && r.Class != checks.XidIgnore {
			return explainRow(r, r.Means, "", "")
		}
	}
	do := checks.WhatToDo(code)
	if do == "" {
		return ""
	}
	var by []string
	finding, fails, severities := &Finding{}, "", map[string]bool{}
	for _, name := range checks.Names() {
		if info, _ := checks.Lookup(name); info.Bears(code) {
			by = append(by, name)
			f := entryOf(name).finding(code)
			if finding.Severity == "" {
				finding = f
			}
			for severity := range strings.SplitSeq(f.Severity, " or ") {
				severities[severity] = true
				if severity == checks.Fail.String() {
					fails = cmp.Or(fails, name)
				}
			}
		}
	}
	rule := policyOf(code)
	if finding.Severity != "" && fails == "" {
		rule = "" // a policy is for failures
	}
	found := strings.Join(by, " ")
	if strings.HasPrefix(code, "gpu.recovery.") {
		found += ", or the first GPU check that meets it"
	}
	return checks.Explained(code, "in reasons", checks.Words(code), "found by", found, "severity", effect(severities, fails), "policy", rule, "example", finding.text(),
		"remedy", string(finding.Remedy), "do", do)
}

// policyOf describes what a failure with a code does, and what ends it.
func policyOf(code string) string {
	switch {
	case strings.HasPrefix(code, "sweep."):
		return "none: a sweep with --drain drains the node, one with --maintenance --resume resumes it"
	case code == "remedy.hold":
		return "the node stays drained until a person runs nhc-gpu clear --remedy"
	}
	rule := policy.For(nil, conf.Policy{}, policy.Subject{Code: code})
	words := strings.Replace(policy.Words(rule), string(conf.FailJob), "drains the node, and in a prolog also requeues the job (fail-job)", 1)
	if rule.Why != "" {
		words += ": " + rule.Why
	}
	return words
}

// explainMore explains the number at the end of a reason: "+2".
func explainMore(text string) string {
	m := moreInReason().FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return fmt.Sprintf("  %-10s other failures of the same run: nhc-gpu --check on the node and its log list them\n", m[1])
}

// explainDrill explains the mark of a rehearsal: "[drill]".
func explainDrill(text string) string {
	mark := strings.TrimSpace(checks.DrillMark)
	if !strings.Contains(text, mark) {
		return ""
	}
	return fmt.Sprintf("  %-10s no fault of the node, but a rehearsal: nhc-gpu status on the node shows it, nhc-gpu drill --end ends it\n", mark)
}

// explainCounter explains a counter of a port, by its name.
func explainCounter(name string) string {
	i := slices.IndexFunc(fabric.IBCounterRows, func(c fabric.IBCounter) bool { return c.Name == name || c.Base() == name })
	if i < 0 {
		return ""
	}
	c := fabric.IBCounterRows[i]
	check := "check_ib_errors does not judge it"
	if c.Judged() {
		per := c.Per
		if per == "any" {
			per = "hour"
		}
		check = fmt.Sprintf("check_ib_errors judges its growth per %s", per)
		for _, limit := range []struct {
			word string
			n    float64
		}{{"warns", float64(c.Warn)}, {"fails", float64(c.Fail)}} {
			if limit.n >= 0 {
				check += fmt.Sprintf(", %s above %g", limit.word, limit.n)
			}
		}
	}
	return checks.Explained(c.Name, "means", c.Means, "the check", check, "remedy", string(c.Remedy), "do", c.Do, "source", c.Source)
}
