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

// xidClear is the acknowledgement of events by an operator.
type xidClear struct {
	At     int64    `json:"at"`               // Unix time, seconds; for people
	Boot   string   `json:"boot"`             // it covers records of this boot before Seq
	Seq    uint64   `json:"seq"`              // record number
	Before []string `json:"before,omitempty"` // earlier boots; clocks can be wrong
	Device string   `json:"device,omitempty"` // PCI address or UUID; "" for all
	Code   string   `json:"code,omitempty"`   // "79", "sxid 12028"; "" for all
	Who    string   `json:"who"`
}

// covers reports whether the acknowledgement covers the event.
func (c *xidClear) covers(e *xidEvent) bool {
	if c.Device != "" && c.Device != e.GPU && c.Device != e.UUID {
		return false
	}
	if c.Code != "" && c.Code != formatClearCode(e.Key) {
		return false
	}
	if e.Boot == c.Boot {
		return e.Seq < c.Seq
	}
	return slices.Contains(c.Before, e.Boot)
}

func formatClearCode(k checks.XidKey) string {
	if k.Switch {
		return fmt.Sprintf("sxid %d", k.Code)
	}
	return fmt.Sprint(k.Code)
}

// applyClears removes the events that operators have cleared.
func (l *xidLedger) applyClears(clears []xidClear) {
	l.Events = slices.DeleteFunc(l.Events, func(e xidEvent) bool {
		return slices.ContainsFunc(clears, func(c xidClear) bool { return c.covers(&e) })
	})
}

// readXidClears reads the acknowledgements of operators.
func readXidClears(env *checks.Env) (clears []xidClear, notes []checks.Finding) {
	env.At("read the cleared Xids")
	if err := env.Host.Recall(xidClearsName, &clears); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, []checks.Finding{checks.Finding{Code: "gpu.xid.ledger", Severity: checks.Warn}.Describe("check_gpu_xid", "the record of cleared Xids is lost, clear them again: %v", err)}
	}
	return clears, nil
}

// OfThisBoot reports whether the record is of the current boot.
func OfThisBoot(env *checks.Env) bool {
	boot, err := probe.BootID(env.Host)
	var ledger struct {
		Boot string `json:"boot"`
	}
	return err == nil && boot != "" && env.Host.Recall(xidLedgerName, &ledger) == nil && ledger.Boot == boot
}

// Clear acknowledges errors that were logged until now: all of them without words, those of a device
// (gpu3, 0000:c1:00.0, GPU-...), of a code (79, sxid:20034), or of both. It returns the errors. The
// next run of check_gpu_xid applies it; only that run writes the ledger. A [probe.SpareError] is not a
// failure.
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
	clears, _ := readXidClears(env) // an unreadable file is replaced
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

// parseXidClear parses the arguments of nhc-gpu clear.
func parseXidClear(env *checks.Env, words []string) (c xidClear, err error) {
	for _, w := range words {
		if k, ok := ParseXidKey(w); ok && c.Code == "" {
			c.Code = formatClearCode(k)
			continue
		}
		device, err := findClearDevice(env, w)
		if errors.As(err, new(noSuchGPU)) {
			return c, fmt.Errorf("clear %s: %w", strings.Join(words, " "), err)
		}
		if errors.Is(err, errNoList) {
			return c, fmt.Errorf("clear %s: %w: name the PCI address instead: %s", strings.Join(words, " "), err, clearOf(words, w))
		}
		if err != nil || c.Device != "" {
			return c, fmt.Errorf("clear %s: want a device (gpu3, 0000:c1:00.0, GPU-...), a code (79, sxid:20034), or one of each", strings.Join(words, " "))
		}
		c.Device = device
	}
	return c, nil
}

// findClearDevice returns the PCI address or the UUID of a GPU that an operator names.
func findClearDevice(env *checks.Env, word string) (string, error) {
	if pci, ok := checks.PCIAddress(word); ok {
		return pci, nil
	}
	number, ok := strings.CutPrefix(strings.ToLower(word), "gpu")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 {
		gpus, _ := nvidia.DriverGPUs(env.Host) // without them a UUID applies to the log
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
		return "", fmt.Errorf("%w (%w)", errNoList, err)
	}
	if n >= len(gpus) {
		return "", noSuchGPU(fmt.Sprintf("this node has no gpu%d: its driver has %s", n, checks.Plural(len(gpus), "GPU")))
	}
	return gpus[n], nil
}

// errNoList is the error for a number of a GPU that cannot be looked up.
var errNoList = errors.New("the driver's list of GPUs cannot be read")

// clearOf returns the command with a PCI address in place of a word.
func clearOf(words []string, word string) string {
	return strings.Replace("nhc-gpu clear "+strings.Join(words, " "), word, "0000:66:00.0", 1)
}

// noSuchGPU is the error for a GPU that the node does not have.
type noSuchGPU string

func (e noSuchGPU) Error() string { return string(e) }
