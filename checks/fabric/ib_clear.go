package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ClearIB is an operator's word that errors and flaps of ports are over: of a device
// (mlx5_3, mlx5_3:1, a glob), or of all. It holds for what has happened until now. It
// returns the ports that had any. A [probe.SpareError] is no failure.
func ClearIB(env *checks.Env, words []string, who string) (cleared []string, err error) {
	if len(words) > 1 {
		return nil, fmt.Errorf("clear %s: want one device (mlx5_3, mlx5_3:1, 'mlx5_*'), or none for all", strings.Join(words, " "))
	}
	c := ibClear{At: probe.Now(env.Host).Unix(), Who: who}
	if len(words) == 1 {
		c.Device = words[0]
	}
	for _, name := range []string{ibErrorsPast, ibFlapsPast} {
		h := env.RecallHistory("clear", name)
		heedIBClears(env, h)
		for _, port := range slices.Sorted(maps.Keys(h.File.Devices)) {
			if d := h.File.Devices[port]; c.covers(port) && (len(d.Marks) > 0 || d.Grew()) && !slices.Contains(cleared, port) {
				cleared = append(cleared, port)
			}
		}
	}
	for _, name := range messageDevices(env) {
		if c.covers(name) && !slices.Contains(cleared, name) {
			cleared = append(cleared, name)
		}
	}
	slices.Sort(cleared)
	list, _ := readIBClears(env) // what cannot be read is begun anew
	list = append(list, c)
	return cleared, env.Host.Keep(ibClearsName, list[max(0, len(list)-checks.MaxClears):])
}

// PortsOfThisBoot says whether what is remembered of ports is of the kernel that runs
// now.
func PortsOfThisBoot(env *checks.Env) bool {
	boot, err := probe.BootID(env.Host)
	return err == nil && boot != "" && slices.ContainsFunc([]string{ibErrorsPast, ibFlapsPast, kernelLogPast}, func(name string) bool {
		var file struct {
			Boot string `json:"boot"`
		}
		return env.Host.Recall(name, &file) == nil && file.Boot == boot
	})
}
