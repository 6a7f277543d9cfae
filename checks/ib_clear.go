package checks

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// ibClearsName is the file of what operators have cleared of ports.
const ibClearsName = "ib-clear"

// ibClear is an operator's word that what has happened to ports is over.
type ibClear struct {
	At     int64  `json:"at"`               // Unix time, seconds: what has happened until then
	Device string `json:"device,omitempty"` // mlx5_3, mlx5_3:1, or a glob; "" for all
	Who    string `json:"who"`
}

// covers says whether a port, by its name, is meant.
func (c *ibClear) covers(port string) bool {
	device, _, _ := strings.Cut(port, ":")
	return c.Device == "" || match.Glob(port, c.Device) || match.Glob(device, c.Device)
}

// ibClears are the words of operators that there are.
func (e *Env) ibClears() (list []ibClear, err error) {
	e.At("read what operators have cleared")
	if err = e.Host.Recall(ibClearsName, &list); err != nil {
		list = nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, probe.ErrNoMemory) {
		err = nil
	}
	return list, err
}

// heedIBClears forgets what operators have cleared. It returns until when a port was.
func (e *Env) heedIBClears(h *history) (until func(port string) time.Time) {
	list, err := e.ibClears()
	if err != nil {
		h.findings = append(h.findings, Finding{Code: "ib.clear", Severity: Warn,
			Message: h.check + ":  what operators have cleared is lost, clear it again: " + strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	list = slices.DeleteFunc(list, func(c ibClear) bool { return c.At > h.now.Unix() }) // the clock was set back
	until = func(port string) (last time.Time) {
		for i := range list {
			if at := time.Unix(list[i].At, 0); list[i].covers(port) && at.After(last) {
				last = at
			}
		}
		return last
	}
	for port := range h.file.Devices {
		if at := until(port); !at.IsZero() {
			h.forget(port, at)
		}
	}
	return until
}

func init() {
	RegisterAdvice(map[string]string{
		"ib.clear": "Say it again: nhc-gpu clear --ib. If each run tells this see whether /var/lib/nhc-gpu can be read and written.",
	})
}

// ClearIB is an operator's word that errors and flaps of ports are over: of a device
// (mlx5_3, mlx5_3:1, a glob), or of all. It holds for what has happened until now. It
// returns the ports that had any. A [probe.SpareError] is no failure.
func ClearIB(env *Env, words []string, who string) (cleared []string, err error) {
	if len(words) > 1 {
		return nil, fmt.Errorf("clear %s: want one device (mlx5_3, mlx5_3:1, 'mlx5_*'), or none for all", strings.Join(words, " "))
	}
	c := ibClear{At: env.Host.Now().Unix(), Who: who}
	if len(words) == 1 {
		c.Device = words[0]
	}
	for _, name := range []string{ibErrorsPast, ibFlapsPast} {
		h := env.recallHistory("clear", name)
		env.heedIBClears(h)
		for _, port := range slices.Sorted(maps.Keys(h.file.Devices)) {
			if d := h.file.Devices[port]; c.covers(port) && (len(d.Marks) > 0 || d.grew()) && !slices.Contains(cleared, port) {
				cleared = append(cleared, port)
			}
		}
	}
	for _, name := range env.messageDevices() {
		if c.covers(name) && !slices.Contains(cleared, name) {
			cleared = append(cleared, name)
		}
	}
	slices.Sort(cleared)
	list, _ := env.ibClears() // what cannot be read is begun anew
	list = append(list, c)
	return cleared, env.Host.Keep(ibClearsName, list[max(0, len(list)-maxClears):])
}

// grew says whether any counter has grown as far as is known.
func (d *deviceHistory) grew() bool {
	for _, list := range d.Series {
		if len(list) > 1 {
			return true
		}
	}
	return false
}

// PortsOfThisBoot says whether what is remembered of ports is of the kernel that runs
// now.
func PortsOfThisBoot(env *Env) bool {
	boot, err := env.Host.BootID()
	return err == nil && boot != "" && slices.ContainsFunc([]string{ibErrorsPast, ibFlapsPast, kernelLogPast}, func(name string) bool {
		var file struct {
			Boot string `json:"boot"`
		}
		return env.Host.Recall(name, &file) == nil && file.Boot == boot
	})
}
