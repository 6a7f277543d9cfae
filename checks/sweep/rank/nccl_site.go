package rank

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// NCCLSite has the settings of NCCL that the site's files on the node have for tests: nccl_env.
type NCCLSite struct {
	Env []string // NAME=VALUE
	Err error    // why they are unknown: without them NCCL may not work on a healthy node
}

// words returns the settings as [cuda.NCCLSettings] has them. A test as root uses no file that other users can
// change.
func (n *NCCLSite) words(h *probe.Host) (string, error) {
	if n.Err != nil {
		return "", fmt.Errorf("the settings of NCCL are unknown: %w", n.Err)
	}
	for _, word := range n.Env {
		_, value, _ := strings.Cut(word, "=")
		if os.Geteuid() != 0 || !path.IsAbs(value) {
			continue
		}
		if err := cuda.Guarded(h, value); err != nil {
			return "", fmt.Errorf("%s of nccl_env is unsafe, NCCL not run: %w", word, err)
		}
	}
	return strings.Join(n.Env, "\n"), nil
}

// value returns the value of a setting, "" if the site does not set it. The last one applies.
func (n *NCCLSite) value(name string) string {
	for _, word := range slices.Backward(n.Env) {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	return ""
}

// avoidsRDMA reports whether the site wants TCP.
func (n *NCCLSite) avoidsRDMA() bool {
	disabled := n.value("NCCL_IB_DISABLE")
	return strings.EqualFold(n.value("NCCL_NET"), "Socket") || disabled != "" && disabled != "0"
}

// choosesNetwork reports whether the site chooses NCCL's network itself: that of a plug-in has another name than IB.
func (n *NCCLSite) choosesNetwork() bool {
	return n.value("NCCL_NET") != "" || n.value("NCCL_NET_PLUGIN") != ""
}
