package verdict

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Reason returns the drain reason of a failure, without the prefix:
//
//	gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2
//
// sinfo -R shows the first 20 characters, so the device and the fault come first. others is
// the number of other failures. A failure of a check of LBNL NHC, or of a line that bash runs,
// keeps its message as the reason: sites search for it. Only a message that ends like the form above, by a name
// that a user chose, loses the brackets of the code.
func Reason(x checks.Finding, others int) string {
	if x.Check == "" {
		if text := checks.ReasonText(x.Message); posing().MatchString(text) {
			return posing().ReplaceAllString(text, "$1($2)$3")
		}
		return x.Message
	}
	text := headline(x)
	if x.Drill {
		text = checks.DrillMark + text
	}
	if action := x.Remedy.Words(); action != "" {
		text += ": " + action
	}
	text += fmt.Sprintf(" (%s) [%s]", x.Check, x.Code)
	if others > 0 {
		text += fmt.Sprintf(" +%d", others)
	}
	if x.Jobs != "" {
		text += " [job " + x.Jobs + "]"
	}
	return text
}

// posing matches a message that ends like the reason of a finding, as Slurm gets it.
var posing = checks.Lazily(`^(.* \(check_\w+\) )\[([a-z0-9._-]+)\]((?: \+\d+)?(?: \[job [0-9 ]+\])?(?: : .*)?)$`)

// maxText is the maximum length of the name of a user's process or file in a reason, in bytes. The check and the
// code come after it.
const maxText = 200

// maxName is the maximum length of a device name in a reason, in bytes: a path can be longer.
const maxName = 60

// headline returns the device, the fault and the address of the device. For a fault without a
// device it adds the values found and wanted.
func headline(x checks.Finding) string {
	words := checks.Words(x.Code)
	d := x.Device
	if strings.HasPrefix(x.Code, "job.left.") { // not a device, but a user's process or file
		text := strings.TrimSuffix(x.Text(x.Check), " [job "+x.Jobs+"]")
		if len(text) > maxText {
			text = strings.ToValidUTF8(text[:maxText], "") + "..."
		}
		return words + ", " + text
	}
	name := d.Name
	if name == "" && d.PCI != "" {
		name = d.Kind
	}
	if len(name) > maxName {
		name = "..." + strings.ToValidUTF8(name[len(name)-maxName:], "")
	}
	switch {
	case name == "" && d.PCI == "":
		if strings.HasPrefix(x.Code, "gpu.recovery.") { // NVML does not say which one
			words = "GPU " + words
		}
		return words + numbers(x)
	case name == "":
		return d.PCI + " " + words
	case d.PCI == "":
		return name + " " + words
	}
	return name + " " + words + " " + d.PCI
}

// maxNumber is the maximum length of a found or wanted value in a reason.
const maxNumber = 24

// numbers returns the found and the wanted value behind a fault, "" if one is missing or too long, or
// if the fault is no quantity: "no NVML".
func numbers(x checks.Finding) string {
	if strings.HasPrefix(checks.Words(x.Code), "no ") || x.Want == "" || x.Got == "" || len(x.Want) > maxNumber || len(x.Got) > maxNumber {
		return ""
	}
	return fmt.Sprintf(" %s, want %s", x.Got, x.Want)
}

// Worst returns the index of the failure that a drain names, -1 if there is none: the one
// with the highest remedy (RMA, reboot, reset, all others); among equals a lost device,
// then the first. Consequences of a lost device come after these, drills last.
func Worst(list []checks.Finding) int {
	worst, best := -1, -2
	lost := slices.DeleteFunc(slices.Clone(list), func(x checks.Finding) bool { return x.Drill || !checks.IsLoss(x.Code) })
	for i, x := range list {
		rank := 2 * x.Remedy.Rank()
		switch {
		case x.Drill:
			rank = -1
		case checks.IsLoss(x.Code):
			rank++
		case isEntailed(x, lost):
			rank = 1
		}
		if rank > best {
			worst, best = i, rank
		}
	}
	return worst
}

// isEntailed reports whether a failure is a consequence of a lost device: it is about the same
// device, or it counts devices.
func isEntailed(x checks.Finding, lost []checks.Finding) bool {
	return slices.ContainsFunc(lost, func(l checks.Finding) bool {
		switch {
		case x.Device.PCI != "" && l.Device.PCI != "":
			return x.Device.PCI == l.Device.PCI
		case x.Device.Name != "":
			return x.Device.Name == l.Device.Name
		}
		return x.Device.PCI == "" && checks.IsCountOf(x.Code, l.Code)
	})
}

// Plain returns a message for an administrator, without the functions and error numbers of vendors'
// libraries. The log and the detail in JSON have them.
func Plain(message string) string {
	if !functions().MatchString(message) {
		return message
	}
	message = within().ReplaceAllString(message, "")
	message = before().ReplaceAllString(message, "")
	message = numbered().ReplaceAllString(message, "")
	return strings.ReplaceAll(message, "(: ", "(")
}

// library matches a function of a vendor's library: nvmlDeviceGetSerial(3).
const library = `\b(?:nvml|cu|cublas\w*|dcgm|nccl)[A-Z]\w*(?:\([^()]*\))?(?: of gpu\d+ [0-9a-f:.]*[0-9a-f])?`

var (
	functions = checks.Lazily(library + `|NVML error \d+`)
	within    = checks.Lazily(` ?\bin ` + library)
	before    = checks.Lazily(`(?:field \d+ of )?` + library + `(?:, level \d+)?: `)
	numbered  = checks.Lazily(` ?\(NVML error \d+\)`)
)
