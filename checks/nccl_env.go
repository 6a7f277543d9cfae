package checks

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The settings of NCCL that a site gives its tests: --env NAME=VALUE of a line, and
// nccl_env of [active] in nhc.toml. The environment of a job or of slurmd is never used.

// ncclEnvOwn are names that the test needs for itself, and what to write in their place.
var ncclEnvOwn = map[string]string{
	"NCCL_ALGO":          "--algo",
	"NCCL_TOPO_FILE":     "--topo FILE",
	"NCCL_P2P_DISABLE":   "--no-p2p",
	"NCCL_SHM_DISABLE":   "--no-p2p",
	"NCCL_DEBUG":         "nothing: the test reads NCCL's log",
	"NCCL_DEBUG_SUBSYS":  "nothing: the test reads NCCL's log",
	"NCCL_DEBUG_FILE":    "nothing: the test reads NCCL's log",
	"NCCL_COMM_BLOCKING": "nothing: the test waits in its own way",
	"UCX_LOG_FILE":       "nothing: root would write that file",
}

// NCCLEnvSetting is the key of a step's variables that has nccl_env of nhc.toml, a line
// for each setting.
const NCCLEnvSetting = "nccl_env"

// WrongNCCLEnv returns what is wrong with a word NAME=VALUE, and what to write. Nil: it
// may be set.
func WrongNCCLEnv(word string) error {
	name, value, ok := strings.Cut(word, "=")
	switch instead, own := ncclEnvOwn[name]; {
	case !ok:
		return &UsageError{Kind: BadValue, Word: word, Want: "NAME=VALUE, as NCCL_IB_HCA=mlx5"}
	case own:
		return &UsageError{Kind: BadValue, Word: name, Want: instead}
	case !slices.ContainsFunc(probe.NCCLPrefixes, func(p string) bool { return len(name) > len(p) && strings.HasPrefix(name, p) }),
		strings.ContainsFunc(name, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' }):
		return &UsageError{Kind: BadValue, Word: name, Want: "a name that begins with " + strings.Join(probe.NCCLPrefixes, ", ") + "; libraries are named in nhc.conf: NCCL_LIBRARY=/path/libnccl.so.2"}
	case len(value) > ncclEnvMost || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return &UsageError{Kind: BadValue, Word: name, Want: fmt.Sprintf("a value of at most %d printable ASCII characters", ncclEnvMost)}
	}
	return nil
}

// ncclEnvMost bounds a value, bytes.
const ncclEnvMost = 1024

// ncclEnv are the settings of a site for a test. Those of its line take precedence.
type ncclEnv struct {
	Env []string `long:"env" toml:"env"` // NAME=VALUE for NCCL or its plug-ins

	Site []string // of nhc.toml
}

func (e *ncclEnv) usableEnv() error {
	for _, word := range e.Env {
		if err := WrongNCCLEnv(word); err != nil {
			return err
		}
	}
	return nil
}

// fromSite takes the settings of nhc.toml.
func (e *ncclEnv) fromSite(env *Env) {
	if text := env.Vars[NCCLEnvSetting]; text != "" {
		e.Site = strings.Split(text, "\n")
	}
}

// all are the settings in force, each name once.
func (e *ncclEnv) all() (list []probe.NCCLSetting) {
	add := func(words []string, where string) {
		for _, word := range words {
			name, value, _ := strings.Cut(word, "=")
			list = slices.DeleteFunc(list, func(s probe.NCCLSetting) bool { return s.Name == name })
			list = append(list, probe.NCCLSetting{Name: name, Value: value, Where: where})
		}
	}
	add(e.Site, "nccl_env of nhc.toml")
	add(e.Env, "this line")
	return list
}

// words are the same as NAME=VALUE.
func (e *ncclEnv) words() (list []string) {
	for _, s := range e.all() {
		list = append(list, s.Name+"="+s.Value)
	}
	return list
}

// tellEnv reports the settings that the site has given. ok is false if one names a file
// that others than root could change: what NCCL loads from it runs as root.
func (t *ncclRun) tellEnv() (ok bool) {
	var list []string
	for _, s := range t.all() {
		list = append(list, fmt.Sprintf("%s=%s by %s", s.Name, s.Value, s.Where))
		if !path.IsAbs(s.Value) {
			continue
		}
		if err := t.env.Host.Guarded(s.Value); err != nil {
			t.failures = true
			t.report(Device{}, Finding{Code: "nccl.environment", Severity: Unknown, Remedy: FixConfig, Got: err.Error()}, "%s=%s by %s is not used, nor is NCCL", s.Name, s.Value, s.Where)
			return false
		}
	}
	if len(list) > 0 {
		t.report(Device{}, Finding{Code: "nccl.settings", Severity: OK}, "set %s", strings.Join(list, ", "))
	}
	return true
}
