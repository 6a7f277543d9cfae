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

// nvmeCount checks how many NVMe disks there are: exactly COUNT, or MIN to MAX. It
// counts controllers on the PCI bus that are live and show a name space, whether or
// not anything is mounted. COUNT is that of AzureHPC's check, which counts
// /dev/nvmeNn1; check_num_nvme_devs is DeepOps's name of it.
//
//	gpu* || check_nvme_count 8
type nvmeCount struct {
	Want string `arg:"1" toml:"count"` // how many, 8, or from how many to how many, 7-8

	name string
}

func init() {
	for _, name := range []string{"check_nvme_count", "check_num_nvme_devs"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "COUNT|MIN-MAX",
			Summary: "there are so many NVMe disks",
			Lane:    checks.Local,
			New:     func() checks.Check { return &nvmeCount{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"nvme.count":  "See lspci -d ::0108 and dmesg: a disk that is not on the bus is dead or loose, one that has no controller was given up by the driver. Reseat it, then replace it. If a disk was added correct the line.",
					"nvme.unread": "A disk could not be read: see the file that is named, as root, and dmesg. One in a reset is live or gone in some minutes. The others were judged.",
				}
			},
		})
	}
}

// Bind reads the words; COUNT must be there.
func (c *nvmeCount) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
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
		case slices.Contains(nvmePassing, d.State): // live or given up within minutes; check_nvme tells when it takes too long
			unknown++
			findings = append(findings, checks.Finding{Code: "nvme.unread", Severity: checks.Unknown}.Report(c.name, checks.NVMeDevice(d), "could not tell: the controller is %s", d.State))
			continue
		case d.State != "" && d.State != checks.NVMeLive:
			why = d.State
		case d.Err != nil:
			unknown++
			findings = append(findings, checks.Finding{Code: "nvme.unread", Severity: checks.Unknown}.Report(c.name, checks.NVMeDevice(d), "could not tell: %v", d.Err))
			continue
		case !hasSpace(d):
			why = "without a name space"
		}
		if why == "" {
			count++
		} else {
			dead = append(dead, fmt.Sprintf("%s is %s", checks.NVMeDevice(d), why))
		}
	}
	low, high, _ := parseRange(c.Want) // Bind has seen to it
	if count+unknown >= low && count <= high {
		return findings // one that cannot be read may be the one that lacks
	}
	dead = append(dead, c.driverless(env, list)...)
	f := checks.Finding{Code: "nvme.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: c.Want, Got: strconv.Itoa(count)}.Describe(c.name, "NVMe disks")
	f.Message += checks.Before(": ", strings.Join(dead, "; "), "")
	return append(findings, f)
}

// driverless are the NVMe controllers on the PCI bus that no driver has: it gave
// them up, or they were given to a virtual machine.
func (c *nvmeCount) driverless(env *checks.Env, list []disk.NVMe) (words []string) {
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
