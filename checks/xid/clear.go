package xid

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// xidClear is an operator's word that events are over.
type xidClear struct {
	At     int64    `json:"at"`               // Unix time, seconds; for people
	Boot   string   `json:"boot"`             // what this boot has logged before Seq
	Seq    uint64   `json:"seq"`              // number of a record
	Before []string `json:"before,omitempty"` // boots before that one; clocks may be wrong
	Device string   `json:"device,omitempty"` // PCI address or UUID; "" for all
	Code   string   `json:"code,omitempty"`   // "79", "sxid 12028"; "" for all
	Who    string   `json:"who"`
}

// covers says whether the operator meant the event.
func (c *xidClear) covers(e *xidEvent) bool {
	if c.Device != "" && c.Device != e.GPU && c.Device != e.UUID {
		return false
	}
	if c.Code != "" && c.Code != clearCode(e.Key) {
		return false
	}
	if e.Boot == c.Boot {
		return e.Seq < c.Seq
	}
	return slices.Contains(c.Before, e.Boot)
}

func clearCode(k checks.XidKey) string {
	if k.Switch {
		return fmt.Sprintf("sxid %d", k.Code)
	}
	return fmt.Sprint(k.Code)
}

// applyClears forgets what operators have cleared.
func (l *xidLedger) applyClears(clears []xidClear) {
	l.Events = slices.DeleteFunc(l.Events, func(e xidEvent) bool {
		return slices.ContainsFunc(clears, func(c xidClear) bool { return c.covers(&e) })
	})
}

// readXidClears are the words of operators that there are.
func readXidClears(env *checks.Env) (clears []xidClear, notes []checks.Finding) {
	env.At("read what operators have cleared")
	if err := env.Host.Recall(xidClearsName, &clears); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, []checks.Finding{checks.Finding{Code: "gpu.xid.ledger", Severity: checks.Warn}.Describe("check_gpu_xid", "what operators have cleared is lost, clear it again: %v", err)}
	}
	return clears, nil
}

// OfThisBoot says whether what is remembered is of the kernel that runs now.
func OfThisBoot(env *checks.Env) bool {
	boot, err := probe.BootID(env.Host)
	var ledger struct {
		Boot string `json:"boot"`
	}
	return err == nil && boot != "" && env.Host.Recall(xidLedgerName, &ledger) == nil && ledger.Boot == boot
}

// Clear is an operator's word that errors are over: "", all of them; a
// device (gpu3, 0000:c1:00.0, GPU-...), a code (79, sxid:20034), or both. It
// holds for what has been logged until now. It returns what was cleared. The
// next run of check_gpu_xid heeds it; the ledger itself is that run's to write. A
// [probe.SpareError] is no failure.
func Clear(env *checks.Env, words []string, who string) (cleared []string, err error) {
	c, err := parseXidClear(env, words)
	if err != nil {
		return nil, err
	}
	ledger, kept, _ := recallXids(env)
	if !kept {
		return nil, fmt.Errorf("clear: %w: only root can", probe.ErrNoMemory)
	}
	if _, _, err := recordXids(env, ledger); err != nil {
		return nil, err
	}
	identifyXids(env, ledger)
	clears, _ := readXidClears(env) // what cannot be read is begun anew
	ledger.applyClears(clears)
	c.At, c.Boot, c.Seq, c.Who = probe.Now(env.Host).Unix(), ledger.Boot, ledger.Cursor, who
	for i := range ledger.Events {
		e := &ledger.Events[i]
		if e.Boot != c.Boot && !slices.Contains(c.Before, e.Boot) {
			c.Before = append(c.Before, e.Boot)
		}
		if text := strings.TrimSpace(e.GPU + " " + e.Key.String()); c.covers(e) && !slices.Contains(cleared, text) {
			cleared = append(cleared, text)
		}
	}
	slices.Sort(cleared)
	clears = append(clears, c)
	return cleared, env.Host.Keep(xidClearsName, clears[max(0, len(clears)-checks.MaxClears):])
}

// parseXidClear reads the words of "nhc-gpu clear".
func parseXidClear(env *checks.Env, words []string) (c xidClear, err error) {
	for _, w := range words {
		if k, ok := ParseXidKey(w); ok && c.Code == "" {
			c.Code = clearCode(k)
			continue
		}
		device, err := xidClearDevice(env, w)
		if err != nil || c.Device != "" {
			return c, fmt.Errorf("clear %s: want a device (gpu3, 0000:c1:00.0, GPU-...), a code (79, sxid:20034), or one of each", strings.Join(words, " "))
		}
		c.Device = device
	}
	return c, nil
}

// xidClearDevice makes a PCI address or a UUID of what a person calls a GPU.
func xidClearDevice(env *checks.Env, word string) (string, error) {
	if pci, ok := checks.PCIAddress(word); ok {
		return pci, nil
	}
	number, ok := strings.CutPrefix(strings.ToLower(word), "gpu")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 {
		gpus, _ := nvidia.DriverGPUs(env.Host) // without it a UUID stands for what the log has said
		for _, pci := range gpus {
			if strings.EqualFold(nvidia.DriverGPUUUID(env.Host, pci), word) {
				return pci, nil
			}
		}
		if strings.HasPrefix(word, "GPU-") {
			return word, nil
		}
		return "", errors.New("no device")
	}
	gpus, err := nvidia.DriverGPUs(env.Host)
	if err != nil {
		return "", err
	}
	if n >= len(gpus) {
		return "", fmt.Errorf("no GPU %d", n)
	}
	return gpus[n], nil
}
