package topology

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// nvmeCount checks the number of NVMe disks: exactly COUNT, or from MIN to MAX. It counts live
// controllers on the PCI bus with a namespace, mounted or not. AzureHPC's check takes the same COUNT
// and counts /dev/nvmeNn1; check_num_nvme_devs is DeepOps's name.
//
//	gpu* || check_nvme_count 8
type nvmeCount struct {
	Want string `arg:"1" toml:"count"` // number of disks, 8, or a range, 7-8; required

	name string
}

func init() {
	for _, name := range []string{"check_nvme_count", "check_num_nvme_devs"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "COUNT|MIN-MAX",
			Summary: "the number of NVMe disks is correct",
			Lane:    checks.Local,
			New:     func() checks.Check { return &nvmeCount{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"nvme.count":  "Compare with lspci -d ::0108 and dmesg: a disk that is not on the bus is dead or loose; the driver has given up a disk without a controller. Reseat it, then replace it. If the number in nhc.conf is wrong, correct the line.",
					"nvme.unread": "A disk could not be read: look at the file in the message, as root, and at dmesg. A disk that is being reset is live or gone within minutes. The check has counted the other disks.",
				}
			},
		})
	}
}

func (c *nvmeCount) Validate() error {
	if c.Want == "" {
		return &checks.UsageError{Kind: checks.MissingWord, Want: "a number of disks, or MIN-MAX"}
	}
	if _, _, ok := parseRange(c.Want); !ok {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Want, Want: "a number of disks, or MIN-MAX"}
	}
	return nil
}

// parseRange reads "8" or "7-8".
func parseRange(text string) (low, high int, ok bool) {
	first, last, several := strings.Cut(text, "-")
	if !several {
		last = first
	}
	low, err := strconv.Atoi(first)
	high, bad := strconv.Atoi(last)
	return low, high, err == nil && bad == nil && low >= 0 && low <= high
}

func (c *nvmeCount) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read /sys/class/nvme")
	list, err := disk.NVMes(env.Host, env.Doing)
	if err != nil {
		return checks.Unreadable(err)
	}
	count, unknown := 0, 0
	var findings []checks.Finding
	var dead []string
	for i := range list {
		d := &list[i]
		if d.Transport != "" && d.Transport != "pcie" {
			continue
		}
		why := ""
		switch {
		case slices.Contains(nvmePassing, d.State): // live or given up within minutes; check_nvme reports a longer reset
			unknown++
			findings = append(findings, checks.Finding{Code: "nvme.unread", Severity: checks.Unknown}.Report(c.name, checks.NVMeDevice(d), "not counted: the controller is %s", d.State))
			continue
		case d.State != "" && d.State != checks.NVMeLive:
			why = d.State
		case d.Err != nil:
			unknown++
			findings = append(findings, checks.Finding{Code: "nvme.unread", Severity: checks.Unknown}.Report(c.name, checks.NVMeDevice(d), "cannot be read: %v", d.Err))
			continue
		case !hasNamespace(d):
			why = "without a namespace"
		}
		if why == "" {
			count++
		} else {
			dead = append(dead, fmt.Sprintf("%s is %s", checks.NVMeDevice(d), why))
		}
	}
	low, high, _ := parseRange(c.Want) // Bind has validated it
	if count+unknown >= low && count <= high {
		return findings // the unread disk may be the missing one
	}
	dead = append(dead, c.findDriverless(env, list)...)
	f := checks.Finding{Code: "nvme.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: c.Want, Got: strconv.Itoa(count)}.Describe(c.name, "NVMe disks")
	if count > high || low > 1 && count+len(dead) == 0 { // too many, or none of several exists
		f.Remedy = checks.FixConfig
	}
	f.Message += checks.Before(": ", strings.Join(dead, "; "), "")
	return append(findings, f)
}

// findDriverless returns the NVMe controllers on the PCI bus without a driver: the driver has given
// them up, or they were passed to a virtual machine.
func (c *nvmeCount) findDriverless(env *checks.Env, list []disk.NVMe) (words []string) {
	has := map[string]bool{}
	for _, d := range list {
		has[d.PCI] = true
	}
	env.At("read /sys/bus/pci/devices")
	for _, address := range pci.OfClass(env.Host, "0108") {
		if !has[address] {
			words = append(words, address+" is on the PCI bus without a controller")
		}
	}
	return words
}
