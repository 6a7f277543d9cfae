package conf

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Remedy is a repair that nhc-gpu may carry out by itself, [remedy.NAME] of nhc.toml. Without such a
// table it repairs nothing.
type Remedy struct {
	Name      string
	Pos       Pos
	Do        string        // one of RemedyWords
	Codes     []string      // codes or their first parts; nil: every code whose remedy is Do or a lesser one
	Platforms []string      // names of platforms; nil: all
	Services  []string      // restart-app: restarted; reset-gpu: stopped for the reset
	Command   []string      // carries out the remedy in place of nhc-gpu, with the event on its standard input
	Verify    []string      // lines of nhc.conf that must pass before the node returns, besides those that found the fault
	Timeout   time.Duration // of the remedy: the command, or the way from the request of a reboot to slurmd's start
	Attempts  int           // for one device and code in Window; then the next remedy is tried
	Window    time.Duration
}

// The remedies that nhc-gpu can carry out, the least first.
const (
	RestartApp = "restart-app"
	ResetGPU   = "reset-gpu"
	RebootNode = "reboot-node"
	PowerCycle = "power-cycle"
)

// RemedyWords are the values of do.
var RemedyWords = []string{RestartApp, ResetGPU, RebootNode, PowerCycle}

// The defaults of a remedy. gpud gives up after two reboots, too; a week is long enough to see whether
// a fault returns. A GPU server takes up to 30 minutes to boot; a reset of eight GPUs 5.
var remedyTimeouts = map[string]time.Duration{RestartApp: time.Minute, ResetGPU: 5 * time.Minute, RebootNode: 30 * time.Minute, PowerCycle: 30 * time.Minute}

const (
	remedyAttempts = 2
	remedyWindow   = 7 * 24 * time.Hour
)

// readRemedies reads the tables of [remedy], sorted by name.
func readRemedies(d *decoder, p toml.Primitive) (all []Remedy) {
	var tables map[string]toml.Primitive
	if err := d.md.PrimitiveDecode(p, &tables); err != nil {
		d.add(err)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if d.md.Type("remedy", name) != "Hash" {
			d.value(tables[name], func(any) error { return fmt.Errorf("key remedy.%s: want [remedy.NAME]", name) })
			continue
		}
		r, errs := Remedy{Name: name, Pos: d.place(tables[name]), Attempts: remedyAttempts, Window: remedyWindow}, len(d.errs)
		d.table("remedy."+name, tables[name], r.keys())
		if len(d.errs) > errs {
			continue
		}
		if err := r.complete(); err != nil {
			d.value(tables[name], func(any) error { return fmt.Errorf("remedy.%s: %w", name, err) })
			continue
		}
		all = append(all, r)
	}
	return all
}

// complete sets the timeout, and returns what the table lacks.
func (r *Remedy) complete() error {
	if r.Timeout == 0 {
		r.Timeout = remedyTimeouts[r.Do]
	}
	switch {
	case r.Do == "":
		return fmt.Errorf("no do: want %s", spell.OneOf("", RemedyWords))
	case r.Do == RestartApp && r.Codes == nil:
		return errors.New("restart-app requires codes: the faults that the restart repairs")
	case r.Do == RestartApp && r.Services == nil && r.Command == nil:
		return errors.New("restart-app requires services or command")
	case r.Do == PowerCycle && r.Command == nil:
		return errors.New("power-cycle requires command: nhc-gpu cannot switch a node off and on")
	case r.Do == ResetGPU && slices.ContainsFunc(r.Services, func(s string) bool { return strings.HasPrefix(s, "nvidia-fabricmanager") }):
		return errors.New("services: a Fabric Manager that is stopped for a reset takes NVLink away until the next boot: leave it running")
	case r.Services != nil && r.Do != RestartApp && r.Do != ResetGPU:
		return fmt.Errorf("services: %s stops no service", r.Do)
	}
	return nil
}

func (r *Remedy) keys() map[string]func(any) error {
	list := func(to *[]string, like string, valid func(string) bool) func(any) error {
		return func(v any) error {
			words, ok := texts(v)
			if !ok || len(words) == 0 || slices.ContainsFunc(words, func(w string) bool {
				return w == "" || strings.ContainsFunc(w, func(c rune) bool { return c < ' ' }) || !valid(w)
			}) {
				return fmt.Errorf("%s: want a list of texts, such as %s", tomltext.Value(v), like)
			}
			*to = words
			return nil
		}
	}
	anyWord := func(string) bool { return true }
	return map[string]func(any) error{
		"do": func(v any) error {
			text, _ := v.(string)
			if !slices.Contains(RemedyWords, text) {
				return fmt.Errorf("%s: want %s", tomltext.Value(v), spell.OneOf(text, RemedyWords))
			}
			r.Do = text
			return nil
		},
		"codes":     list(&r.Codes, `["gpu.recovery.reset", "gpu.remap"]`, IsCode),
		"platforms": list(&r.Platforms, `["HGX H100"]`, anyWord),
		"services":  list(&r.Services, `["nvidia-dcgm"]`, func(w string) bool { return !strings.HasPrefix(w, "-") }),
		"verify":    list(&r.Verify, `["check_gpu_gemm"]`, anyWord),
		"command": func(v any) error {
			if err := list(&r.Command, `["/usr/local/sbin/repair"]`, anyWord)(v); err != nil {
				return err
			}
			if !filepath.IsAbs(r.Command[0]) {
				return fmt.Errorf("%s: want the absolute path of a program first", tomltext.Value(v))
			}
			return nil
		},
		"timeout": length(&r.Timeout, time.Second, 2*time.Hour),
		"window":  length(&r.Window, time.Hour, 90*24*time.Hour),
		"attempts": func(v any) error {
			n, _ := v.(int64)
			if n < 1 || n > 100 {
				return fmt.Errorf("%s: want a whole number, 1 to 100", tomltext.Value(v))
			}
			r.Attempts = int(n)
			return nil
		},
	}
}

// length returns a function that reads a duration: "90s", "10m", "168h".
func length(to *time.Duration, least, most time.Duration) func(any) error {
	return func(v any) error {
		text, _ := v.(string)
		d, err := time.ParseDuration(text)
		if err != nil || d < least || d > most {
			return fmt.Errorf("%s: want a duration from %s to %s, such as \"30m\" or \"168h\"", tomltext.Value(v), least, most)
		}
		*to = d
		return nil
	}
}
