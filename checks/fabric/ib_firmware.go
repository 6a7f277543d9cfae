package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibFirmware checks the firmware of the adapters that carry jobs' traffic: it matches one
// VERSION, a match string (28.39.2048, '28.39.*', '/28\.(39|43)/'), and is not older than -m
// MINIMUM. In any case it warns if adapters of one board id (or PCI id, if the driver reports no
// board) have other firmware than most of them. -b BOARD, a match string, checks the adapters
// with that board id instead, whatever their role. It compares the running firmware: flashed
// firmware runs after a reset of the adapter.
//
//	gpu* || check_ib_firmware 28.39.2048
//	gpu* || check_ib_firmware -b MT_0000000838 -m 28.39.1002
type ibFirmware struct {
	Board    string   `opt:"b" toml:"board"`    // match string for the board id; "": adapters that carry jobs' traffic
	Minimum  string   `opt:"m" toml:"minimum"`  // oldest accepted firmware
	Versions []string `arg:"*" toml:"versions"` // match strings; the firmware has to match one
}

const ibFirmwareName = "check_ib_firmware"

func init() {
	checks.Register(checks.Info{
		Name:    ibFirmwareName,
		Usage:   "[-b BOARD] [-m MINIMUM] [VERSION...]",
		Summary: "adapters have the required firmware, the same on all of a kind",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibFirmware{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.firmware.version": "If all nodes have this firmware, correct the line. Otherwise flash the adapter (mlxfwmanager, or flint -d ADDRESS), then run mlxfwreset -d ADDRESS reset or reboot, with no job on the node.",
				"ib.firmware.differ":  "One adapter was replaced or flashed separately, or was flashed and not yet reset: reboot when no job runs. Update all adapters of one board to one version at the next maintenance.",
				"ib.firmware.board":   "Nothing to repair: no adapter of this node has this board id. cat /sys/class/infiniband/*/board_id prints those of the node.",
			}
		},
	})
}

func (c *ibFirmware) Run(_ context.Context, env *checks.Env) []checks.Finding {
	if _, ok := parseVersion(c.Minimum); c.Minimum != "" && !ok {
		return []checks.Finding{checks.BadWord(ibFirmwareName, "version", c.Minimum, "numbers and dots")}
	}
	f, findings := Ask(env, ibFirmwareName)
	if f == nil {
		return findings
	}
	fits := env.Matcher(&findings)
	var list []*rdma.HCA
	for i := range f.HCAs {
		if a := &f.HCAs[i]; c.judges(f, a, fits) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return append(findings, checks.Finding{Code: "ib.firmware.board", Severity: checks.Skip}.
			Describe(ibFirmwareName, "no adapter to judge%s", checks.Before(", none with board ", c.Board, "")))
	}
	firmware, _ := findUsualFirmware(list, firmwareBoard(list[0]))
	env.Fact("%s, firmware %s", checks.Plural(len(list), "adapter"), firmware)
	for _, a := range list {
		findings = append(findings, c.judge(f, a, fits, list)...)
	}
	return findings
}

// findUsualFirmware returns the firmware of most adapters of a board, and a description of these. If
// none has a majority it is that of the first.
func findUsualFirmware(list []*rdma.HCA, board string) (firmware, of string) {
	count, all, first := map[string]int{}, 0, (*rdma.HCA)(nil)
	for _, a := range list {
		if a.Firmware != "" && firmwareBoard(a) == board {
			if first == nil {
				first = a
			}
			count[a.Firmware]++
			all++
		}
	}
	if firmware = checks.Commonest(count); first != nil && count[firmware]*2 <= all {
		return first.Firmware, first.Name + ", board " + board
	}
	return firmware, "the other boards " + board
}

// firmwareBoard returns the board id of an adapter, or its PCI id if the driver has no board id.
func firmwareBoard(a *rdma.HCA) string {
	return cmp.Or(strings.TrimSpace(a.Board), checks.BareID(a.Vendor)+":"+checks.BareID(a.Model))
}

// judges reports whether the line applies to an adapter.
func (c *ibFirmware) judges(f *Fabric, a *rdma.HCA, fits func(s, expr string) bool) bool {
	if a.VF || a.PCI == "" {
		return false
	}
	if c.Board != "" {
		return a.Board != "" && fits(a.Board, c.Board) || a.Board == "" && a.Err != nil
	}
	if len(a.Ports) == 0 { // it can be one of them
		return a.Err != nil
	}
	return slices.ContainsFunc(f.Ports, func(p Port) bool { return p.HCA == a && p.Left == "" })
}

// judge judges one adapter of a list.
func (c *ibFirmware) judge(f *Fabric, a *rdma.HCA, fits func(s, expr string) bool, list []*rdma.HCA) []checks.Finding {
	asked := len(c.Versions) > 0 || c.Minimum != ""
	if c.Board != "" && a.Board == "" {
		return []checks.Finding{f.Unknown(HCADevice(a), a.Err)}
	}
	if a.Firmware == "" {
		switch {
		case a.Err != nil:
			return []checks.Finding{f.Unknown(HCADevice(a), a.Err)}
		case asked:
			return []checks.Finding{f.Unknown(HCADevice(a), errors.New("no firmware version reported"))}
		}
		return nil
	}
	of := checks.Finding{Code: "ib.firmware.version", Severity: checks.Fail, Remedy: checks.FixConfig, Want: strings.Join(c.Versions, " or "), Got: a.Firmware}
	if len(c.Versions) > 0 && !slices.ContainsFunc(c.Versions, func(v string) bool { return fits(a.Firmware, v) }) {
		return []checks.Finding{of.Report(f.Check, HCADevice(a), "firmware%s", checks.Before(" of board ", a.Board, ""))}
	}
	if c.Minimum != "" {
		got, ok := parseVersion(a.Firmware)
		if !ok {
			return []checks.Finding{f.Unknown(HCADevice(a), fmt.Errorf("firmware %q: want numbers and dots", a.Firmware))}
		}
		if least, _ := parseVersion(c.Minimum); slices.Compare(got, least) < 0 {
			of.Want = "at least " + c.Minimum
			return []checks.Finding{of.Report(f.Check, HCADevice(a), "firmware%s", checks.Before(" of board ", a.Board, ""))}
		}
	}
	if usual, whose := findUsualFirmware(list, firmwareBoard(a)); usual != "" && a.Firmware != usual {
		of.Code, of.Severity, of.Want = "ib.firmware.differ", checks.Warn, usual
		return []checks.Finding{of.Report(f.Check, HCADevice(a), "firmware differs from %s", whose)}
	}
	return nil
}

// parseVersion parses "28.39.2048".
func parseVersion(text string) (list []int, ok bool) {
	for word := range strings.SplitSeq(text, ".") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 {
			return nil, false
		}
		list = append(list, n)
	}
	return list, true
}
