package verdict

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Reason returns what Slurm is to show for a failure, without the prefix:
//
//	gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2
//
// sinfo -R shows the first 20 characters, so the device and the fault come first. others is
// the number of the other failures. The failure of a check of LBNL NHC's, or of a line that
// bash runs, is its own reason: sites search for it.
func Reason(x checks.Finding, others int) string {
	if x.Check == "" {
		return x.Message
	}
	text := headline(x)
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

// maxName is the longest name of a device in a reason, in bytes: a path may be longer.
const maxName = 60

// headline is the device, the fault, and the address of the device. A fault of no one
// device has what is wanted and what was found.
func headline(x checks.Finding) string {
	words := checks.Words(x.Code)
	d := x.Device
	if strings.HasPrefix(x.Code, "job.left.") { // no device, but somebody's process or file
		text := strings.TrimSuffix(x.Text(x.Check), " [job "+x.Jobs+"]")
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
		return words + numbers(x)
	case name == "":
		return d.PCI + " " + words
	case d.PCI == "":
		return name + " " + words
	}
	return name + " " + words + " " + d.PCI
}

// maxNumber is the longest text that is wanted, or was found, in a reason.
const maxNumber = 24

func numbers(x checks.Finding) string {
	if x.Want == "" || x.Got == "" || len(x.Want) > maxNumber || len(x.Got) > maxNumber {
		return ""
	}
	return fmt.Sprintf(" %s, want %s", x.Got, x.Want)
}

// Worst returns the place of the failure that a drain is for, -1 if there is none: the one
// whose remedy takes most, RMA before reboot before reset before all others; among equals
// a lost device, then the first. What a lost device entails comes last.
func Worst(list []checks.Finding) int {
	worst, best := -1, -1
	lost := slices.DeleteFunc(slices.Clone(list), func(x checks.Finding) bool { return !checks.IsLoss(x.Code) })
	for i, x := range list {
		rank := 2 * x.Remedy.Rank()
		switch {
		case checks.IsLoss(x.Code):
			rank++
		case entailed(x, lost):
			rank = 1
		}
		if rank > best {
			worst, best = i, rank
		}
	}
	return worst
}

// entailed reports whether a failure follows from a lost device: it is of the same device,
// or it counts devices.
func entailed(x checks.Finding, lost []checks.Finding) bool {
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

// Plain returns a message for a person, without the functions and error numbers of vendors'
// libraries. The log and the detail of JSON have them.
func Plain(message string) string {
	if !functions().MatchString(message) {
		return message
	}
	message = within().ReplaceAllString(message, "")
	message = before().ReplaceAllString(message, "")
	message = numbered().ReplaceAllString(message, "")
	return strings.ReplaceAll(message, "(: ", "(")
}

// library is a function of a vendor's library: nvmlDeviceGetSerial(3).
const library = `\b(?:nvml|cu|cublas\w*|dcgm|nccl)[A-Z]\w*(?:\([^()]*\))?(?: of gpu\d+ [0-9a-f:.]*[0-9a-f])?`

var (
	functions = checks.Lazily(library + `|NVML error \d+`)
	within    = checks.Lazily(` ?\bin ` + library)
	before    = checks.Lazily(`(?:field \d+ of )?` + library + `(?:, level \d+)?: `)
	numbered  = checks.Lazily(` ?\(NVML error \d+\)`)
)
