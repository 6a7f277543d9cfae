package checks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

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
	case !slices.ContainsFunc(cuda.NCCLPrefixes, func(p string) bool { return len(name) > len(p) && strings.HasPrefix(name, p) }),
		strings.ContainsFunc(name, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' }):
		return &UsageError{Kind: BadValue, Word: name, Want: "a name that begins with " + strings.Join(cuda.NCCLPrefixes, ", ") + "; libraries are named in nhc.conf: NCCL_LIBRARY=/path/libnccl.so.2"}
	case len(value) > ncclEnvMost || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return &UsageError{Kind: BadValue, Word: name, Want: fmt.Sprintf("a value of at most %d printable ASCII characters", ncclEnvMost)}
	}
	return nil
}

// ncclEnvMost bounds a value, bytes.
const ncclEnvMost = 1024
