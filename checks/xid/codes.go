package xid

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidCodes is a selection of codes: "48,62-64,79", "sxid:12028", "!13,31".
type xidCodes struct {
	not    bool
	ranges []xidRange
}

type xidRange struct {
	isSwitch bool
	from, to int
}

// has reports whether the code is selected. An empty selection has all codes.
func (c xidCodes) has(k checks.XidKey) bool {
	if c.ranges == nil {
		return true
	}
	for _, r := range c.ranges {
		if r.isSwitch == k.Switch && k.Code >= r.from && k.Code <= r.to {
			return !c.not
		}
	}
	return c.not
}

func parseXidCodes(text string) (c xidCodes, err error) {
	if text == "" {
		return c, nil
	}
	rest, not := strings.CutPrefix(text, "!")
	c.not = not
	for word := range strings.SplitSeq(rest, ",") {
		r, ok := parseXidRange(strings.TrimSpace(word))
		if !ok {
			return xidCodes{}, &checks.UsageError{Kind: checks.BadValue, Word: text, Want: "codes such as 48,62-64,sxid:12028"}
		}
		c.ranges = append(c.ranges, r)
	}
	return c, nil
}

func parseXidRange(word string) (r xidRange, ok bool) {
	word = strings.TrimPrefix(strings.ToLower(word), "xid:")
	word, r.isSwitch = strings.CutPrefix(word, "sxid:")
	if word == "*" {
		r.to = checks.MaxCode
		return r, true
	}
	first, last, isRange := strings.Cut(word, "-")
	if !isRange {
		last = first
	}
	var ok1, ok2 bool
	r.from, ok1 = checks.ParseCode(first)
	r.to, ok2 = checks.ParseCode(last)
	return r, ok1 && ok2 && r.from <= r.to
}

// ParseXidKey parses one code: 79, xid:79, sxid:12028, 12028 (SXids start at 10000).
func ParseXidKey(word string) (k checks.XidKey, ok bool) {
	word = strings.ToLower(strings.TrimSpace(word))
	for _, p := range []string{"xid:", "xid "} {
		if rest, is := strings.CutPrefix(word, p); is {
			k.Code, ok = checks.ParseCode(strings.TrimSpace(rest))
			return k, ok
		}
		if rest, is := strings.CutPrefix(word, "s"+p); is {
			k.Switch = true
			k.Code, ok = checks.ParseCode(strings.TrimSpace(rest))
			return k, ok
		}
	}
	k.Code, ok = checks.ParseCode(word)
	k.Switch = k.Code >= 10000
	return k, ok
}

// adviseCode returns the advice on a finding code of an Xid or SXid.
func adviseCode(code string) string {
	var k checks.XidKey
	number, ok := strings.CutPrefix(code, "gpu.xid.")
	if !ok {
		if number, k.Switch = strings.CutPrefix(code, "gpu.sxid."); !k.Switch {
			return ""
		}
	}
	if k.Code, ok = checks.ParseCode(number); !ok {
		return ""
	}
	row := (&xidPolicy{}).row(k)
	return row.adviseFinding(row.Class, k)
}

// adviseFinding returns the advice on a finding of a class.
func (r *xidRow) adviseFinding(c checks.XidClass, k checks.XidKey) string {
	return fmt.Sprintf("%s. %s (nhc-gpu xid explain %s)", strings.ToUpper(r.Means[:1])+r.Means[1:], r.advise(c, k.Switch), formatCode(k))
}

// advise returns the advice on an event of a row.
func (r *xidRow) advise(c checks.XidClass, isSwitch bool) string {
	switch {
	case c == checks.XidApp && r.Victim:
		return "Restart the job: the GPU's memory has failed, the application is not the cause. Check with nvidia-smi -q -d ROW_REMAPPER whether a pending remapping needs a GPU reset."
	case r.cureOf(c) != "":
		return strings.ToUpper(r.Cure[:1]) + r.Cure[1:] + "."
	case c == checks.XidState && r.State == "bank":
		return checks.ResetAdvice
	}
	return adviseClass(c, isSwitch)
}

// cureOf returns the cure of a row, "" for an event of another class: the cure belongs to the class of the row.
// Only a power cycle ends an error that needs one, whether the log or the driver asks for a reset or a reboot.
func (r *xidRow) cureOf(c checks.XidClass) string {
	if c != r.Class && !(r.Remedy == checks.PowerCycle && c.Drains() && c != checks.XidHold) {
		return ""
	}
	return r.Cure
}

// adviseClass returns the advice on an event of a class.
func adviseClass(c checks.XidClass, isSwitch bool) string {
	switch c {
	case checks.XidIgnore:
		return "Nothing."
	case checks.XidFollow:
		return "Look for the error before it; alone it needs no action."
	case checks.XidApp:
		return "Inform the owner of the job: it is a fault of the application. If different jobs have it on one GPU, the GPU may be faulty."
	case checks.XidConfig:
		return "Check the driver, the firmware and the configuration of the fabric manager."
	case checks.XidState:
		return "Check nvidia-smi -q -d ROW_REMAPPER: a pending remapping needs a GPU reset, a failed one a new GPU."
	case checks.XidDiag:
		return "When the node is idle, run dcgmi diag -r 3 on the GPU."
	case checks.XidReset:
		if isSwitch {
			return checks.ResetAllAdvice
		}
		return checks.ResetAdvice + " If the error returns, contact the vendor."
	case checks.XidReboot:
		return "Reboot the node; if the error stays, power the node off and on. If it returns within a week, have the hardware examined."
	case checks.XidHold:
		return "Reseat or replace the hardware, or contact the vendor; then run nhc-gpu clear ADDRESS CODE, as the message has it."
	case checks.XidDecode:
		return "The numbers of the line decide: pass the whole line to nhc-gpu xid explain."
	case checks.XidAuthority:
		return "Do what the driver asks for; the Xid before it is the reason."
	}
	return "Watch it: the node is not drained. If it occurs often, contact the vendor."
}
