package fabric

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
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

// readIBClears are the words of operators that there are.
func readIBClears(env *checks.Env) (list []ibClear, err error) {
	env.At("read what operators have cleared")
	if err = env.Host.Recall(ibClearsName, &list); err != nil {
		list = nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, probe.ErrNoMemory) {
		err = nil
	}
	return list, err
}

// heedIBClears forgets what operators have cleared. It returns until when a port was.
func heedIBClears(env *checks.Env, h *checks.History) (until func(port string) time.Time) {
	list, err := readIBClears(env)
	if err != nil {
		h.Findings = append(h.Findings, checks.Finding{Code: "ib.clear", Severity: checks.Warn}.Describe(h.Check, "what operators have cleared is lost, clear it again: %v", err))
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
	checks.RegisterAdvice(map[string]string{
		"ib.clear": "Say it again: nhc-gpu clear --ib. If each run tells this see whether /var/lib/nhc-gpu can be read and written.",
	})
}
