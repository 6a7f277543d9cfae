package checks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// ncclEnvOwn holds the variables that the test sets itself, and what to write instead.
var ncclEnvOwn = map[string]string{
	"NCCL_ALGO":          "--algo",
	"NCCL_TOPO_FILE":     "--topo FILE",
	"NCCL_P2P_DISABLE":   "--no-p2p",
	"NCCL_SHM_DISABLE":   "--no-p2p",
	"NCCL_DEBUG":         "no NCCL_DEBUG: the test reads NCCL's log",
	"NCCL_DEBUG_SUBSYS":  "no NCCL_DEBUG_SUBSYS: the test reads NCCL's log",
	"NCCL_DEBUG_FILE":    "no NCCL_DEBUG_FILE: the test reads NCCL's log",
	"NCCL_COMM_BLOCKING": "no NCCL_COMM_BLOCKING: the test sets it itself",
	"UCX_LOG_FILE":       "no UCX_LOG_FILE: root would write that file",
}

// NCCLEnvSetting is the key, in the variables of a step, of nccl_env from nhc.toml: one line
// for each setting.
const NCCLEnvSetting = "nccl_env"

// WrongNCCLEnv returns the error in a word NAME=VALUE, with the correct form, or nil if
// the word is allowed.
func WrongNCCLEnv(word string) error {
	name, value, ok := strings.Cut(word, "=")
	switch instead, own := ncclEnvOwn[name]; {
	case !ok:
		return &UsageError{Kind: BadValue, Word: word, Want: "NAME=VALUE, such as NCCL_IB_HCA=mlx5"}
	case own:
		return &UsageError{Kind: BadValue, Word: name, Want: instead}
	case !slices.ContainsFunc(cuda.NCCLPrefixes, func(p string) bool { return len(name) > len(p) && strings.HasPrefix(name, p) }),
		strings.ContainsFunc(name, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' }):
		return &UsageError{Kind: BadValue, Word: name, Want: "a name that begins with " + strings.Join(cuda.NCCLPrefixes, ", ") + "; set libraries in nhc.conf: NCCL_LIBRARY=/path/libnccl.so.2"}
	case len(value) > ncclEnvMost || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return &UsageError{Kind: BadValue, Word: name, Want: fmt.Sprintf("a value of at most %d printable ASCII characters", ncclEnvMost)}
	}
	return nil
}

// ncclEnvMost is the maximum length of a value, in bytes.
const ncclEnvMost = 1024
