package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"errors"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// ClearIB acknowledges the errors and flaps of ports until now: of a device (mlx5_3, mlx5_3:1, a
// glob), or of all. It returns the ports that had any. A [probe.SpareError] is not a failure.
func ClearIB(env *checks.Env, args []string, who string) (cleared []string, err error) {
	if len(args) > 1 {
		return nil, fmt.Errorf("clear %s: want one device (mlx5_3, mlx5_3:1, 'mlx5_*'), or none for all", strings.Join(args, " "))
	}
	c := ibClear{At: probe.Now(env.Host).Unix(), Who: who}
	if len(args) == 1 {
		c.Device = args[0]
	}
	rows, _ := readIBCounters(env, "")
	isError := func(counter string) bool {
		return counter != ibTraffic && counter != ibWasUp && !strings.HasPrefix(counter, ibIndex) && !strings.HasPrefix(counter, ibExcused) &&
			!slices.ContainsFunc(rows, func(c IBCounter) bool { return c.Name == counter && !c.Judged() })
	}
	for _, name := range []string{ibErrorsPast, ibFlapsPast} {
		h := env.RecallHistory("clear", name)
		applyIBClears(env, h)
		for _, port := range slices.Sorted(maps.Keys(h.File.Devices)) {
			if d := h.File.Devices[port]; c.covers(port) && (len(d.Marks) > 0 || d.Grew(isError)) && !slices.Contains(cleared, port) {
				cleared = append(cleared, port)
			}
		}
	}
	for _, name := range listMessageDevices(env) {
		if c.covers(name) && !slices.Contains(cleared, name) {
			cleared = append(cleared, name)
		}
	}
	slices.Sort(cleared)
	list, _ := readIBClears(env) // an unreadable file is replaced
	list = append(list, c)
	return cleared, env.Host.Keep(ibClearsName, list[max(0, len(list)-checks.MaxClears):])
}

// PortsOfThisBoot reports whether the stored history of ports is from the running kernel.
func PortsOfThisBoot(env *checks.Env) bool {
	boot, err := probe.BootID(env.Host)
	return err == nil && boot != "" && slices.ContainsFunc([]string{ibErrorsPast, ibFlapsPast, kernelLogPast}, func(name string) bool {
		var file struct {
			Boot string `json:"boot"`
		}
		return env.Host.Recall(name, &file) == nil && file.Boot == boot
	})
}

// ibClearsName is the name of the state file.
const ibClearsName = "ib-clear"

// ibClear is one acknowledgement.
type ibClear struct {
	At     int64  `json:"at"`               // Unix time, seconds: it covers everything until then
	Device string `json:"device,omitempty"` // mlx5_3, mlx5_3:1, or a glob; "" for all
	Who    string `json:"who"`
}

// covers reports whether an acknowledgement applies to a port.
func (c *ibClear) covers(port string) bool {
	device, _, _ := strings.Cut(port, ":")
	return c.Device == "" || match.Glob(port, c.Device) || match.Glob(device, c.Device)
}

// readIBClears returns the stored acknowledgements.
func readIBClears(env *checks.Env) (list []ibClear, err error) {
	env.At("read the acknowledged port errors")
	if err = env.Host.Recall(ibClearsName, &list); err != nil {
		list = nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, probe.ErrNoMemory) {
		err = nil
	}
	return list, err
}

// applyIBClears removes acknowledged errors from a history. until returns the time of a port's
// last acknowledgement.
func applyIBClears(env *checks.Env, h *checks.History) (until func(port string) time.Time) {
	list, err := readIBClears(env)
	if err != nil {
		h.Findings = append(h.Findings, checks.Finding{Code: "ib.clear", Severity: checks.Warn}.Describe(h.Check, "acknowledgements of port errors are lost, repeat nhc-gpu clear --ib: %v", err))
	}
	list = slices.DeleteFunc(list, func(c ibClear) bool { return c.At > h.Now.Unix() }) // the clock was set back
	until = func(port string) (last time.Time) {
		for i := range list {
			if at := time.Unix(list[i].At, 0); list[i].covers(port) && at.After(last) {
				last = at
			}
		}
		return last
	}
	for port := range h.File.Devices {
		if at := until(port); !at.IsZero() {
			h.Forget(port, at)
		}
	}
	return until
}

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"ib.clear": "Acknowledge again: nhc-gpu clear --ib. If every run reports this check that root can read and write /var/lib/nhc-gpu.",
		}
	})
}
