package network

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Neighbors reads from lldpd the far ends of the cables: by network interface, the name of the
// switch and its port. Waiting for a frame instead would take half a minute, the interval of most
// switches. Without lldpd there are none. For a recorded node it reads recorded/lldp.json, the
// output of "lldpcli -f json show neighbors".
func Neighbors(ctx context.Context, h *probe.Host, limit time.Duration) (map[string]string, error) {
	return probe.Once(h, "lldp", func() (map[string]string, error) {
		if h.Recorded() {
			data, err := h.ReadFile("/recorded/lldp.json")
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}
			return parseLLDP(data), err
		}
		program := findProgram("/usr/sbin/lldpcli", "/usr/bin/lldpcli", "/sbin/lldpcli")
		if program == "" {
			return nil, nil
		}
		x := h.Run(ctx, probe.Command{Argv: []string{"lldpcli", "-f", "json", "show", "neighbors"}, Program: program, Timeout: limit, Output: maxLLDP})
		if x.Status != 0 {
			return nil, nil // lldpd does not run
		}
		return parseLLDP(x.Output), nil
	})
}

// maxLLDP bounds the output of lldpcli, bytes.
const maxLLDP = 1 << 20

// findProgram returns the first of these programs that exists and that only root can change.
func findProgram(paths ...string) string {
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == 0 && info.Mode().IsRegular() && info.Mode().Perm()&0o022 == 0 {
			return p
		}
	}
	return ""
}

// parseLLDP parses the output of lldpcli. With one interface "interface" is an object, with several
// a list of objects, each with the name of one interface.
func parseLLDP(data []byte) map[string]string {
	var out struct {
		LLDP struct {
			Interface json.RawMessage `json:"interface"`
		} `json:"lldp"`
	}
	if json.Unmarshal(data, &out) != nil {
		return nil
	}
	type values struct {
		Chassis map[string]json.RawMessage `json:"chassis"`
		Port    struct {
			ID struct {
				Value string `json:"value"`
			} `json:"id"`
			Descr string `json:"descr"`
		} `json:"port"`
	}
	list := []map[string]json.RawMessage{{}}
	if json.Unmarshal(out.LLDP.Interface, &list) != nil && json.Unmarshal(out.LLDP.Interface, &list[0]) != nil {
		return nil
	}
	found := map[string]string{}
	for _, one := range list {
		for dev, text := range one {
			var v values
			if json.Unmarshal(text, &v) != nil {
				continue
			}
			name := ""
			for _, n := range slices.Sorted(maps.Keys(v.Chassis)) {
				if n != "id" { // the key is the name of the system; a system without a name has only an id
					name = n
				}
			}
			if name == "" {
				var id struct{ Value string }
				_ = json.Unmarshal(v.Chassis["id"], &id)
				name = id.Value
			}
			port := v.Port.ID.Value
			if port == "" {
				port = v.Port.Descr
			}
			if end := pci.CleanText(name + " " + port); found[dev] == "" && end != "" {
				found[dev] = end
			}
		}
	}
	return found
}
