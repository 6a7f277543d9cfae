package xid

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidCodes is a choice of codes: "48,62-64,79", "sxid:12028", "!13,31".
type xidCodes struct {
	not    bool
	ranges []xidRange
}

type xidRange struct {
	isSwitch bool
	from, to int
}

// has says whether the code is chosen. No choice is all of them.
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

// ParseXidKey reads one code: 79, xid:79, sxid:12028, 12028 (those of NVSwitches
// begin at 10000).
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

// doXid is what to do about a finding of an Xid or SXid.
func doXid(code string) string {
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
	r := (&xidPolicy{}).row(k)
	return fmt.Sprintf("%s%s (nhc-gpu xid explain %s)", strings.ToUpper(r.Means[:1])+r.Means[1:]+". ", r.advice(r.Class, k.Switch), clearWord(k))
}

// advice is what an administrator does about an event of a row.
func (r *xidRow) advice(c checks.XidClass, isSwitch bool) string {
	switch {
	case c == checks.XidApp && r.Victim:
		return "Restart the job: the GPU's memory failed under it, and the application is not to blame. nvidia-smi -q -d ROW_REMAPPER shows whether a remapping waits for a GPU reset."
	case c == checks.XidReboot && r.Cure != "":
		return strings.ToUpper(r.Cure[:1]) + r.Cure[1:] + "."
	case c == checks.XidState && r.State == "bank":
		return "Reset the GPU when it is idle: nvidia-smi --gpu-reset -i GPU."
	}
	return classAdvice(c, isSwitch)
}

// classAdvice is what an administrator does about an event of the class.
func classAdvice(c checks.XidClass, isSwitch bool) string {
	switch c {
	case checks.XidIgnore:
		return "Nothing is to be done."
	case checks.XidFollow:
		return "Look for the error before it; alone it asks for nothing."
	case checks.XidApp:
		return "Tell the owner of the job: it is the application's fault. Different jobs with it on one GPU point to the GPU."
	case checks.XidConfig:
		return "See to the driver, the firmware and the fabric manager's configuration."
	case checks.XidState:
		return "See nvidia-smi -q -d ROW_REMAPPER: a pending remapping wants a GPU reset, a failed one a new GPU."
	case checks.XidDiag:
		return "When the node is idle run dcgmi diag -r 3 on the GPU."
	case checks.XidReset:
		if isSwitch {
			return "Stop all jobs, reset all GPUs together (nvidia-smi --gpu-reset), restart the fabric manager; or reboot."
		}
		return "When its jobs have ended: nvidia-smi --gpu-reset -i GPU, with the whole NVLink group; or reboot. If it comes back see the vendor."
	case checks.XidReboot:
		return "Reboot the node, best with the power off for a moment. If it comes back within a week the hardware is to be looked at."
	case checks.XidHold:
		return "Reseat or replace the hardware, see the vendor; then nhc-gpu clear."
	case checks.XidDecode:
		return "The numbers of the line decide: give the whole line to nhc-gpu xid explain."
	case checks.XidAuthority:
		return "Do what the driver asks for; the Xid before it says why."
	}
	return "Watch it: it drains nobody. If it comes often show it to the vendor."
}
