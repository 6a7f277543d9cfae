package checks

import (
	"fmt"
	"slices"
	"strings"
)

// Explain explains what a person has in hand: a line of the kernel's log, an Xid or SXid,
// a code of a finding, a message or reason of ours, or a counter of errors. It says what
// that means, what the checks do with it, what to do, and the source.
func Explain(env *Env, text string) (string, error) {
	text = strings.TrimSpace(text)
	if l, ok := pastedLine(text, aboutDevice); ok {
		return explainLine(l), nil
	}
	if l, ok := pastedLine(text, aboutLink); ok {
		return explained("A lost link", "device", strings.TrimSpace(l.PCI+" "+l.Dev), "the check", "check_ib_link_flapping counts it: it fails if it repeats", "do", WhatToDo("ib.flap"), "source", l.Source), nil
	}
	if answer, err := ExplainXid(env, text); err == nil {
		return answer, nil
	}
	for _, code := range codeInText().FindAllString(text, -1) {
		if answer := explainCode(env, code); answer != "" {
			return answer, nil
		}
	}
	if answer := explainCounter(text); answer != "" {
		return answer, nil
	}
	if m := xidInText().FindStringSubmatch(text); m != nil { // of a message of check_gpu_xid
		return ExplainXid(env, m[0])
	}
	if name := checkInText().FindString(text); name != "" {
		if info, ok := Lookup(name); ok {
			return explained("A message of "+name, "means", info.Summary, "do", "nhc-gpu --check --json prints the code of the finding: explain that."), nil
		}
	}
	return "", fmt.Errorf("explain %q: want a line of the kernel's log, an Xid (79, sxid:12028), the code of a finding (gpu.recovery.lost), a reason or message of nhc-gpu, or a counter (symbol_error)", text)
}

var (
	codeInText  = Lazily(`[a-z]+(\.[a-z0-9_-]+)+`)
	xidInText   = Lazily(`\bS?Xid \d{1,5}\b`)
	checkInText = Lazily(`\bcheck_[a-z0-9_]+`)
)

// explainLine explains a message of klog.toml.
func explainLine(l kernelLine) string {
	number := 0
	if len(l.row.Numbers) > 0 {
		number, _ = parseCode(l.Number)
	}
	return explainRow(l.row, l.row.meaning(number), strings.TrimSpace(l.PCI+" "+l.Dev), l.Detail)
}

func explainRow(r *messageRow, means, device, detail string) string {
	code := r.Code
	if r.Class == XidIgnore {
		code = ""
	}
	return explained(strings.ToUpper(means[:1])+means[1:], "device", device, "detail", detail, "code", code,
		"the check", kernelLogName+": "+r.does(), "remedy", string(r.Remedy), "do", r.Do, "why", r.Why, "source", r.Source)
}

// explainCode explains a code, "" if no finding has it.
func explainCode(env *Env, code string) string {
	if number, ok := strings.CutPrefix(code, "gpu.xid."); ok {
		if answer, err := ExplainXid(env, number); err == nil {
			return answer
		}
	}
	if number, ok := strings.CutPrefix(code, "gpu.sxid."); ok {
		if answer, err := ExplainXid(env, "sxid:"+number); err == nil {
			return answer
		}
	}
	for i := range messageTable().Rows {
		if r := &messageTable().Rows[i]; r.Code == code && r.Class != XidIgnore {
			return explainRow(r, r.Means, "", "")
		}
	}
	do := WhatToDo(code)
	if do == "" {
		return ""
	}
	var by []string
	for _, name := range Names() {
		if info, _ := Lookup(name); info.Do[code] != "" || info.DoOf != nil && info.DoOf(code) != "" {
			by = append(by, name)
		}
	}
	return explained(code, "means", Words(code), "found by", strings.Join(by, " "), "do", do)
}

// explainCounter explains a counter of a port, by its name.
func explainCounter(name string) string {
	i := slices.IndexFunc(ibCounterRows, func(c ibCounter) bool { return c.Name == name || c.base() == name })
	if i < 0 {
		return ""
	}
	c := ibCounterRows[i]
	check := "check_ib_errors does not judge it"
	if c.judged() {
		check = fmt.Sprintf("check_ib_errors judges its growth (per %s; any: in an hour)", c.Per)
		for _, limit := range []struct {
			word string
			n    float64
		}{{"warns", float64(c.Warn)}, {"fails", float64(c.Fail)}} {
			if limit.n >= 0 {
				check += fmt.Sprintf(", %s above %g", limit.word, limit.n)
			}
		}
	}
	return explained(c.Name, "means", c.Means, "the check", check, "remedy", string(c.Remedy), "do", c.Do, "source", c.Source)
}
